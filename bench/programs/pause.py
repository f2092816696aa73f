"""Stops itself often. Arguments: private MiB besides, MiB written per round,
rounds, "new" or "same" memory. A second process watches the clock."""

import mmap
import os
import struct
import sys
import time

import ratoon

private, written, rounds = (int(a) for a in sys.argv[1:4])
new = sys.argv[4] == "new"
BLOCK = 1 << 20

shared = mmap.mmap(-1, 4096)
if os.fork() == 0:  # the largest step of the wall clock since the last reset
    last = time.time_ns()
    while True:
        time.sleep(0.0005)
        now = time.time_ns()
        if now - last > struct.unpack_from("<q", shared)[0]:
            struct.pack_into("<q", shared, 0, now - last)
        last = now


def fill(mib, salt):
    pattern = os.urandom(BLOCK // 16) * 16
    out = bytearray(mib * BLOCK)
    for i in range(mib):
        out[i * BLOCK : (i + 1) * BLOCK] = pattern
        out[i * BLOCK] = (salt + i) % 255 + 1
    return out


ballast = fill(private, 1)
area = fill(written, 2)
kept = []
ratoon.snapshot()
print("ready", flush=True)
for i in range(rounds):
    if new:
        kept.append(fill(written, i))
    else:
        area[:] = fill(1, i) * written
    struct.pack_into("<q", shared, 0, 0)
    ratoon.snapshot()
    time.sleep(0.002)  # the watcher's turn
    print("gap", struct.unpack_from("<q", shared)[0], flush=True)
