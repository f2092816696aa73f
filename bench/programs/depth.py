"""A chain of snapshots, each with new memory. Arguments: levels, MiB a level."""

import os
import sys
import time

import ratoon

kept = []
for level in range(1, int(sys.argv[1]) + 1):
    kept.append(os.urandom(1 << 16) * (16 * int(sys.argv[2])))
    cp = ratoon.snapshot()
    if cp.restored:
        break
    print("level", level, cp.id, flush=True)
while True:
    time.sleep(3600)
