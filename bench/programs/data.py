"""Holds data and hashes it when asked. Argument: MiB."""

import os
import sys

data = os.urandom(1 << 20) * int(sys.argv[1])
print("ready", hash(memoryview(data)), flush=True)
for line in sys.stdin:
    print("answer", hash(memoryview(data)) if line.strip() == "hash" else 0, flush=True)
