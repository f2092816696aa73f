"""Draws what must differ in every copy of a machine, and reads its clock.

A process that makes no call watches for the thaw: it draws random bytes and
compares the clock with one that stands still while the machine is stopped.
"""

import json
import os
import random
import ssl
import sys
import tempfile
import time
import uuid

import ratoon

FIRST = "/workspace/first"


def clocks():
    """The time, and how far it is ahead of the clock that never steps."""
    while True:
        before = time.monotonic_ns()
        now = time.time_ns()
        after = time.monotonic_ns()
        if after - before < 1_000_000:
            return now, now - (before + after) // 2


def watch():
    _, offset = clocks()
    while True:
        draw = os.getrandom(16)
        now, shifted = clocks()
        if abs(shifted - offset) > 3_000_000:
            with open(FIRST + ".new", "w") as f:
                # The stop may have come between the draw and the look at the
                # clock; then the next draw is the first after it.
                json.dump({"draws": [draw.hex(), os.getrandom(16).hex()], "offset": shifted}, f)
            os.rename(FIRST + ".new", FIRST)
            os._exit(0)
        offset = shifted


def first():
    while not os.path.exists(FIRST):
        time.sleep(0.01)
    with open(FIRST) as f:
        return json.load(f)


def draw():
    """Everything that two copies must not have in common, by name."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot_id = f.read().strip()
    with open("/etc/machine-id") as f:
        machine_id = f.read().strip()
    return {
        "random": random.random(),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "urandom": os.urandom(16).hex(),
        "ssl": ssl.RAND_bytes(16).hex(),
        "tempfile": tempfile.mktemp(),
        "boot_id": boot_id,
        "machine_id": machine_id,
        "hostname": os.uname().nodename,
    }


def host_times():
    """The host's clock between two looks at this one's, several times."""
    out = []
    for _ in range(3):
        before, _ = clocks()
        host = int(ratoon.llm_query("time").split(": ")[1])
        after, offset = clocks()
        out.append({"before": before, "host": host, "after": after, "offset": offset})
    return out


def see():
    return {"drawn": draw(), "first": first(), "times": host_times(), "input": os.read(0, 100).decode()}


draw()  # every generator has been used before the branch
ssl.RAND_bytes(1)
if os.fork() == 0:
    watch()
print("read", os.read(0, 6).decode().strip(), flush=True)
time.sleep(0.5)  # until the watcher is at it
b = ratoon.branch(int(sys.argv[1]))
if b.index is not None:
    seen = see()
    ratoon.llm_query("hold")
    ratoon.finish(seen)
seen = see()
print("loaded", flush=True)
print(json.dumps([seen] + [r.result if r.ok else r.error.code for r in b.results()]), flush=True)
