"""Branches. Arguments: children, MiB of data, then rounds: "hash" or "plain"."""

import os
import sys

import ratoon

n, mib = int(sys.argv[1]), int(sys.argv[2])
data = os.urandom(1 << 20) * mib


def answer(how):
    return hash(memoryview(data)) if how == "hash" else 0


for how in sys.argv[3:]:
    want = answer(how)
    print("branch", flush=True)
    b = ratoon.branch(n)
    if b.index is not None:
        ratoon.finish(answer(how))
    right = sum(1 for r in b.as_completed(timeout=900) if r.result == want)
    print("answered", right, flush=True)
