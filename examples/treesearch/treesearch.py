"""Solve a Sudoku by forking the machine at every choice.

The grid is one list in this process's memory and is only ever written in
place: the program has no stack of copies and never takes a value back. Where
logic gives out it calls ratoon.branch(n), one running copy of the machine per
candidate, and each copy goes on with its own memory. A copy that runs into a
contradiction just ends. With --no-branch the first candidate is taken instead,
and a wrong guess is final.

usage: treesearch.py PUZZLE [--no-branch]     PUZZLE: 81 characters, row by row, 0 or . for empty
"""

import sys
import time

import ratoon

PEERS = [
    [p for p in range(81) if p != c and (p // 9 == c // 9 or p % 9 == c % 9 or (p // 27 == c // 27 and p % 9 // 3 == c % 9 // 3))]
    for c in range(81)
]
UNITS = (
    [[9 * r + c for c in range(9)] for r in range(9)]
    + [[9 * r + c for r in range(9)] for c in range(9)]
    + [[9 * (3 * b + r) + 3 * a + c for r in range(3) for c in range(3)] for a in range(3) for b in range(3)]
)

grid: list[int] = []  # the whole state of the search
steps: list[str] = []  # the guesses that led here


def candidates(cell: int) -> list[int]:
    used = {grid[p] for p in PEERS[cell]}
    return [v for v in range(1, 10) if v not in used]


def propagate() -> bool:
    """Fill in all that is certain; False on a contradiction."""
    progress = True
    while progress:
        progress = False
        for cell in range(81):
            if grid[cell]:
                continue
            left = candidates(cell)
            if not left:
                return False
            if len(left) == 1:
                grid[cell] = left[0]
                progress = True
        for unit in UNITS:
            for value in range(1, 10):
                if any(grid[c] == value for c in unit):
                    continue
                places = [c for c in unit if not grid[c] and value in candidates(c)]
                if not places:
                    return False
                if len(places) == 1:
                    grid[places[0]] = value
                    progress = True
    return True


def choose() -> tuple[int, list[int]]:
    """The empty cell with the fewest candidates."""
    return min(((c, candidates(c)) for c in range(81) if not grid[c]), key=lambda x: (len(x[1]), x[0]))


def guess(cell: int, value: int) -> None:
    grid[cell] = value
    steps.append(f"r{cell // 9 + 1}c{cell % 9 + 1}={value}")


def search(branching: bool) -> dict | None:
    """What is found below this point: the answer, or None. In a child it does
    not return: the child ends with it as its result."""
    child = False
    while True:
        found = None
        if propagate():
            if all(grid):
                found = {"grid": list(grid), "steps": list(steps)}
            else:
                cell, values = choose()
                if not branching:
                    guess(cell, values[0])
                    continue
                here = ratoon.branch(len(values), payloads=values, labels=[f"r{cell // 9 + 1}c{cell % 9 + 1}={v}" for v in values])
                if here.index is not None:
                    child = True
                    guess(cell, here.payload)
                    continue
                for result in here.as_completed():
                    if result.error is not None:
                        raise result.error
                    if result.result is not None:
                        found = result.result
                        break
                for i in range(len(values)):
                    here.cancel(i)  # without effect on those that have ended
        if child:
            ratoon.finish(found)
        return found


def show(cells: list[int]) -> str:
    rows = []
    for r in range(9):
        row = [str(v or ".") for v in cells[9 * r : 9 * r + 9]]
        rows.append(" ".join(row[:3]) + " | " + " ".join(row[3:6]) + " | " + " ".join(row[6:]))
        if r in (2, 5):
            rows.append("------+-------+------")
    return "\n".join(rows)


def report() -> None:
    tree = ratoon.tree()
    print("\ntree of timelines (the guess at each, by node):")
    for t in sorted(tree.timelines, key=lambda t: [int(x) for x in t.node.split(".")]):
        print("  " * (t.node.count(".") + 1) + f"{t.node}  {t.label or 'start'}  {t.state}")
    limit = ratoon.budget()["live"].limit
    print(f"\ncost: {len(tree.timelines)} machines in {time.monotonic() - begun:.1f} s, at most {limit} of them at once")


begun = time.monotonic()
grid.extend(int(c) if c.isdigit() else 0 for c in sys.argv[1])
if len(grid) != 81:
    sys.exit(__doc__)
print(show(grid), flush=True)
answer = search("--no-branch" not in sys.argv)
if answer is None:
    print("\nno answer: a guess was wrong and could not be taken back")
    sys.exit(1)
print(f"\nanswer, after the guesses {', '.join(answer['steps'])}:\n" + show(answer["grid"]))
if "--no-branch" not in sys.argv:
    report()
