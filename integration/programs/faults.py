"""Makes every kind of call once, whatever each comes to, and says that it lives.

Loaded by `ratoon run --from` it says so and ends.
"""

import sys
import time

import ratoon


def step(name, call, *args, **options):
    try:
        return call(*args, **options)
    except ratoon.RatoonError as error:
        print(name, error.code, flush=True)
        return None


def came_back(cp):
    """A return that nobody in this program has caused."""
    if cp is not None and cp.restored and cp.payload is None:
        print("loaded", flush=True)
        sys.exit(0)
    return cp


def children():
    b = step("branch", ratoon.branch, 3, max_live=2)
    if b is None:
        return
    if b.index == 0:
        sys.exit(1)
    if b.index == 1:
        came_back(ratoon.finish("kept", keep=True))
        return  # adopted
    if b.index == 2:
        ratoon.finish(2)
    results = step("results", b.results) or []
    for r in results:
        print("result", r.index, r.result if r.ok else r.error.code, flush=True)
    if len(results) == 3 and results[1].ok:
        came_back(step("adopt", b.adopt, 1, payload="come"))


def cancelled():
    b = step("second branch", ratoon.branch, 1)
    if b is None:
        return
    if b.index is not None:
        time.sleep(3600)
    try:
        b.cancel(0)
    except ratoon.RatoonError as error:  # the child lives
        print("cancel", error.code, flush=True)
        step("second cancel", b.cancel, 0)
    step("second results", b.results)
    step("discard", b.discard)


one = came_back(step("snapshot", ratoon.snapshot, "one"))
if one is not None and not one.restored:
    came_back(step("restore", ratoon.restore, one.id, payload="back"))
came_back(step("durable", ratoon.snapshot, "two", durable=True))
step("query", ratoon.llm_query, "hello")
cancelled()
children()
print("alive", ratoon.whoami().node, flush=True)
