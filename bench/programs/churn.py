"""Snapshots with memory that changes between them. Arguments: snapshots, MiB changed each, MiB in all."""

import os
import random
import sys
import time

import ratoon

BLOCK = 1 << 16
snapshots, changed, total = (int(a) for a in sys.argv[1:])
data = bytearray(total << 20)
for level in range(snapshots):
    for block in random.sample(range(total * 16), changed * 16):
        data[block * BLOCK : (block + 1) * BLOCK] = os.urandom(BLOCK)
    cp = ratoon.snapshot()
    if cp.restored:
        break
    print("level", level, cp.id, flush=True)
while True:
    time.sleep(3600)
