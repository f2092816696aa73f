"""Best-first search in which a model proposes and judges the steps, and every
state of the search is a kept checkpoint of the whole machine.

The puzzle: combine the given numbers with + - * / to reach 24. A child applies
one step to the numbers in its memory, asks the model how promising they are
and what could come next, and ends with finish(keep=True). The parent expands
the best state so far with branch(at=...), wherever in the tree it is, and
drops those below a limit. When a child has reached 24 the parent adopts it:
execution goes on in that child, which alone remembers how it got there.

usage: llm_search.py NUMBER NUMBER NUMBER NUMBER
"""

import heapq
import re
import sys

import ratoon

PRUNE_BELOW = 3  # of 10
STEP = re.compile(r"^\s*(\d+) ([-+*/]) (\d+) = (\d+)\b", re.M)

numbers: list[int] = []
history: list[str] = []


def propose() -> list[list]:
    """Up to three next steps, as the model likes them."""
    answer = ratoon.llm_query(f"Numbers: {' '.join(map(str, numbers))}. Propose up to three steps towards 24, one a line, like '10 - 4 = 6'.")
    return [[int(a), op, int(b), int(c)] for a, op, b, c in STEP.findall(answer)]


def judge() -> int:
    """How promising the numbers are, 0 to 10."""
    answer = ratoon.llm_query(f"Numbers: {' '.join(map(str, numbers))}. How likely can they make 24? Answer with a number from 0 to 10.")
    found = re.search(r"\d+", answer)
    return min(10, int(found.group())) if found else 0


def apply(step: list) -> None:
    a, op, b, c = step
    numbers.remove(a)
    numbers.remove(b)
    numbers.append(c)
    numbers.sort()
    history.append(f"{a} {op} {b} = {c}")


def live(step: list) -> None:
    """One child: from here on this code is resumed again and again."""
    while True:
        apply(step)
        done = numbers == [24]
        score = 10 if done else judge()
        steps = [] if done or score < PRUNE_BELOW or len(numbers) == 1 else propose()
        here = ratoon.finish({"numbers": numbers, "score": score, "steps": steps, "done": done}, keep=True)
        if here.index is None:  # adopted
            print("24 =", "; ".join(history), flush=True)
            return
        step = here.payload  # expanded: a copy of this state takes one more step


def report(branches: int, pruned: int) -> None:
    tree, budget = ratoon.tree(), ratoon.budget()
    print(f"cost: {len(tree.timelines)} timelines, {branches} expansions, {pruned} states dropped, {budget['llm_calls'].used} model calls")


def search() -> None:
    frontier: list = []
    counts = {"branches": 0, "pruned": 0}
    order = 0
    steps, at = propose(), None
    while True:
        counts["branches"] += 1
        b = ratoon.branch(len(steps), payloads=steps, labels=[" ".join(map(str, s)) for s in steps], at=at)
        if b.index is not None:
            live(b.payload)
            return
        for r in b.as_completed():
            if r.error is not None:
                raise r.error
            state = r.result
            print(f"  {' '.join(map(str, state['numbers'])):<12} score {state['score']}", flush=True)
            if state["done"]:
                report(counts["branches"], counts["pruned"])
                sys.stdout.flush()
                b.adopt(r.index)
            if state["steps"]:
                heapq.heappush(frontier, (-state["score"], order, state["steps"], r.checkpoint))
                order += 1
            else:
                counts["pruned"] += 1
        if not frontier:
            sys.exit("no way to 24 among the steps the model proposed")
        _, _, steps, at = heapq.heappop(frontier)


if len(sys.argv) != 5:
    sys.exit(__doc__)
numbers.extend(sorted(int(a) for a in sys.argv[1:]))
print("numbers:", *numbers, flush=True)
search()
