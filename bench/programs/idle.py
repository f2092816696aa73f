"""Branches into children that do nothing. Argument: children."""

import sys
import time

import ratoon

b = ratoon.branch(int(sys.argv[1]))
if b.index is None:
    print("branched", flush=True)
while True:
    time.sleep(3600)
