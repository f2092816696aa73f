"""The scenarios of the integration table, for the Python helper.

usage: scenarios.py NAME...

Each prints "== NAME" and what it sees. They run one after another in the
sandbox's first line; children of branches end inside their scenario. What is
printed is the same for every helper.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import ratoon


def show(what, *values):
    print(what, *(json.dumps(v, separators=(",", ":"), sort_keys=True) for v in values), flush=True)


def code(call, *args, **options):
    """The code of the error that a call ends with."""
    try:
        call(*args, **options)
    except ratoon.RatoonError as error:
        return error.code
    return "ok"


def show_error(what, call, *args, **options):
    try:
        call(*args, **options)
    except ratoon.RatoonError as error:
        print(what, error.code, error.message, flush=True)
    else:
        print(what, "ok", flush=True)


def show_results(b):
    for r in b.results():
        if r.ok:
            show(str(r.index), r.result)
        else:
            print(r.index, r.error.code, flush=True)


def hang():
    time.sleep(3600)


def handle(id, n):
    """A handle that pretends to be the parent's."""
    return ratoon.Branch(id=id, index=None, n=n, payload=None, checkpoint="")


def until(condition):
    while not condition():
        time.sleep(0.1)


def state(label):
    return [t.state for t in ratoon.tree().timelines if t.label == label][-1]


def newest_auto():
    return ([""] + [c.id for c in ratoon.tree().checkpoints if c.kind == "auto"])[-1]


def snapshot():
    count = 1
    cp = ratoon.snapshot(label="first")
    if not cp.restored:
        show("taken", cp.payload)
        count += 1
        with open("/workspace/later", "w") as f:
            f.write("x")
        ratoon.restore(cp.id, payload={"tried": "a", "n": 1})
    show("restored", cp.payload, count, os.path.exists("/workspace/later"))


def durable():
    cp = ratoon.snapshot("lasting", durable=True)
    if not cp.restored:
        (info,) = (c for c in ratoon.tree().checkpoints if c.id == cp.id)
        show("durable", info.durable, info.label)
        ratoon.restore(cp.id)
    show("restored", cp.payload)


def large():
    size = 2 << 20
    cp = ratoon.snapshot()
    if not cp.restored:
        ratoon.restore(cp.id, payload="x" * size)
    show("payload", cp.payload == "x" * size)
    b = ratoon.branch(1, payloads=["y" * size])
    if b.index is not None:
        ratoon.finish(b.payload)
    show("result", b.results()[0].result == "y" * size)


def ancestors():
    root = ratoon.snapshot("root")
    if root.restored:
        if ratoon.whoami().index is not None:
            ratoon.finish({"at": "root", "payload": root.payload})
        show("root", root.payload)
        return
    mid = ratoon.snapshot("mid")
    if mid.restored:
        if ratoon.whoami().index is not None:
            ratoon.finish({"at": "mid", "payload": mid.payload})
        show("mid", mid.payload)
        ratoon.restore(root.id, payload="second")
    b = ratoon.branch(2)
    if b.index is not None:
        ratoon.restore([root, mid][b.index].id, payload=b.index)
    show_results(b)
    ratoon.restore(mid.id, payload="first")


def cycles():
    total = 0
    for i in range(20):
        cp = ratoon.snapshot(f"round {i}")
        if not cp.restored:
            ratoon.restore(cp.id, payload=i, keep_present=i % 2 == 0)
        total += cp.payload
    show("sum", total)
    cp = ratoon.snapshot("again and again")
    rounds = cp.payload or 0
    if rounds < 3:
        ratoon.restore(cp.id, payload=rounds + 1, keep_present=False)
    show("rounds", rounds)


def present():
    cp = ratoon.snapshot()
    if not cp.restored:
        kept = ratoon.restore(cp.id, payload="go")
        show("present", kept.restored, kept.payload)
        return
    show("restored", cp.payload)
    ratoon.restore(newest_auto(), payload="back")


def drop():
    cp = ratoon.snapshot()
    if not cp.restored:
        ratoon.restore(cp.id, payload=newest_auto(), keep_present=False)
    show("kept nothing", newest_auto() == cp.payload)


def who():
    w, t, b = ratoon.whoami(), ratoon.tree(), ratoon.budget()
    show("whoami", w.node, w.depth, w.index, w.label)
    show("tree", t.sandbox == w.sandbox, t.state, [x.node for x in t.timelines if x.state == "live"])
    for name in "depth", "live", "memory":
        show(name, -1 if b[name].limit is None else b[name].limit, b[name].used)
    ratoon.sync()
    show("synced")


def errors():
    unknown = "cp-aaaaaaaaaaaaaaaa"
    show("restore unknown", code(ratoon.restore, unknown))
    show("restore path", code(ratoon.restore, "../../etc/passwd"))
    show("restore nothing", code(ratoon.restore, ""))
    show("branch 0", code(ratoon.branch, 0))
    show("branch -1", code(ratoon.branch, -1))
    show("branch 1025", code(ratoon.branch, 1025))
    show("branch payloads", code(ratoon.branch, 2, payloads=[1]))
    show("branch min_ok", code(ratoon.branch, 2, min_ok=3))
    show("branch at", code(ratoon.branch, 1, at=unknown))
    show("results unknown", code(handle("br-aaaaaaaaaaaaaaaa", 1).results))
    show("label", code(ratoon.snapshot, "x" * 257))
    show("model", code(ratoon.llm_query, "hello"))


def branch():
    b = ratoon.branch(3, payloads=["red", {"green": [1, 2]}, None])
    if b.index is not None:
        ratoon.finish({"index": b.index, "n": b.n, "payload": b.payload})
    show("parent", b.index, b.n, b.payload)
    show_results(b)


def names():
    b = ratoon.branch(2, labels=["left", "right"], env=[{"SIDE": "l"}, {"SIDE": "r"}])
    if b.index is not None:
        w = ratoon.whoami()
        ratoon.finish({"env": w.env, "index": w.index, "label": w.label})
    show_results(b)


def nested(level=1):
    b = ratoon.branch(1)
    if b.index is not None:
        if level < 6:
            nested(level + 1)
        ratoon.finish([ratoon.whoami().depth])
    (r,) = b.results()
    depths = r.result if r.ok else [r.error.code]
    if level > 1:
        ratoon.finish([*depths, ratoon.whoami().depth])
    show("depths", depths)


def waves():
    b = ratoon.branch(4, max_live=2)
    if b.index is not None:
        live = [t for t in ratoon.tree().timelines if t.state == "live"]
        ratoon.finish(len(live) <= 3)
    show_results(b)


def min_ok():
    b = ratoon.branch(2, min_ok=1)
    if b.index is not None:
        ratoon.finish(b.index)
    show_results(b)


def timeout():
    b = ratoon.branch(2, timeout=6)
    if b.index == 0:
        hang()
    if b.index == 1:
        ratoon.finish("in time")
    show_results(b)


def cancel():
    b = ratoon.branch(2)
    if b.index == 0:
        hang()
    if b.index == 1:
        ratoon.finish("done")
    b.cancel(0)
    show_results(b)


def adopt():
    b = ratoon.branch(2)
    if b.index is not None:
        mine = f"memory of {b.index}"
        cp = ratoon.finish(b.index, keep=True)
        show("adopted", mine, cp.restored, cp.payload, ratoon.whoami().node)
        return
    show_results(b)
    b.adopt(1, payload="come")


def expand():
    b = ratoon.branch(1)
    if b.index is not None:
        seen = ["start"]
        while True:
            cp = ratoon.finish(seen, keep=True)
            seen.append(cp.payload)
    (start,) = b.results()
    for payloads in ["a", "b"], ["c"]:
        b = ratoon.branch(len(payloads), at=start.checkpoint, payloads=payloads)
        show_results(b)
    (c,) = b.results()
    show_results(ratoon.branch(1, at=c.checkpoint, payloads=["d"]))
    cp = ratoon.snapshot("point")
    if cp.index is not None:
        ratoon.finish(["point", cp.restored, cp.payload])
    show_results(ratoon.branch(2, at=cp.id, payloads=["e", "f"]))


def discard():
    b = ratoon.branch(2)
    if b.index is not None:
        ratoon.finish(b.index, keep=b.index == 1)
    show_results(b)
    show("not kept", code(b.adopt, 0))
    b.discard()
    show("discarded", code(b.adopt, 1))


def patience():
    b = ratoon.branch(1)
    if b.index is not None:
        hang()
    show("waited", code(b.results, timeout=0.3))
    b.cancel(0)
    show_results(b)


def exits():
    b = ratoon.branch(3)
    if b.index == 0:
        print("oh no", file=sys.stderr)
        sys.exit(3)
    if b.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if b.index == 2:
        sys.exit(0)
    for r in b.results():
        d = r.error.details
        show(f"{r.index} {r.error.code}", d["signal"], d["status"], d["stderr"])


def handles():
    b = ratoon.branch(1)
    if b.index is not None:
        ratoon.finish([code(handle(b.id, 1).cancel, 0)])
    show_results(b)
    cp = ratoon.snapshot()
    if not cp.restored:
        ratoon.restore(cp.id)
    show("restored", code(b.cancel, 0))


def pending():
    slow = ratoon.branch(1)
    if slow.index is not None:
        hang()
    outcome = []

    def wait():
        try:
            outcome.extend(r.error.code for r in slow.results())
        except ratoon.RatoonError as error:
            outcome.append(error.code)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(1)  # until the call is under way
    b = ratoon.branch(1)
    if b.index is not None:
        waiter.join()
        ratoon.finish(outcome[0])
    show_results(b)
    show("pending", waiter.is_alive())
    slow.cancel(0)
    waiter.join()
    show("outcome", outcome[0])


def callers():
    made = []
    threads = [threading.Thread(target=lambda i=i: made.append(ratoon.snapshot(f"caller {i}"))) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    labels = [c.label for c in ratoon.tree().checkpoints if c.id in [cp.id for cp in made]]
    show("made", sorted(labels))


def survive():
    worker = subprocess.Popen(
        ["sh", "-c", 'n=0; while read -r x; do n=$((n+1)); echo "$n $x"; done'],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )
    journal = open("/workspace/journal", "w+")

    def use(name):
        worker.stdin.write(name + "\n")
        journal.write(name + "\n")
        journal.flush()
        with open("/workspace/journal") as f:
            lines = f.read().splitlines()
        return [worker.stdout.readline().strip(), f"{len(lines)} {lines[-1]}"]

    show("before", use("first"))
    cp = ratoon.snapshot()
    if cp.restored:
        show("restored", use("again"))
        worker.kill()
        return
    b = ratoon.branch(2)
    if b.index is not None:
        ratoon.finish(use(f"child {b.index}"))
    show("parent", use("parent"))
    show_results(b)
    ratoon.restore(cp.id)


def threads():
    here, there = socket.socketpair()
    if (server := os.fork()) == 0:
        here.close()
        count = 0
        while data := there.recv(100):
            count += 1
            there.sendall(b"%d %s" % (count, data))
        os._exit(0)
    there.close()
    asked, answered = [], []
    changed = threading.Condition()

    def count():
        while True:
            with changed:
                changed.wait_for(lambda: asked)
                answered.append(f"{len(answered) + 1} {asked.pop()}")
                changed.notify_all()

    threading.Thread(target=count, daemon=True).start()

    def use(name):
        here.sendall(name.encode())
        with changed:
            had = len(answered)
            asked.append(name)
            changed.notify_all()
            changed.wait_for(lambda: len(answered) > had)
        return [here.recv(100).decode(), answered[-1]]

    show("before", use("first"))
    cp = ratoon.snapshot()
    if cp.restored:
        show("restored", use("again"))
        here.close()
        os.waitpid(server, 0)
        return
    b = ratoon.branch(2)
    if b.index is not None:
        ratoon.finish(use(f"child {b.index}"))
    show("parent", use("parent"))
    show_results(b)
    ratoon.restore(cp.id)


def detach():
    cp = ratoon.snapshot("before")
    if cp.restored:
        show("child", state("loner"))
        ratoon.snapshot("seen")
        until(lambda: state("loner") == "ended")
        show("then", state("loner"))
        return
    b = ratoon.branch(1, labels=["loner"])
    if b.index is not None:
        until(lambda: any(c.label == "seen" for c in ratoon.tree().checkpoints))
        ratoon.finish("nobody asks")
    ratoon.restore(cp.id, detach=True)


def replaced():
    cp = ratoon.snapshot()
    if cp.restored:
        show("child", state("orphan"))
        return
    b = ratoon.branch(1, labels=["orphan"])
    if b.index is not None:
        hang()
    ratoon.restore(cp.id)


def reasons():
    seen = []
    ratoon.on_resume(lambda reason, slept, lost: seen.append(reason))
    cp = ratoon.snapshot()
    if not cp.restored:
        show("taken", seen)
        ratoon.restore(cp.id)
    show("restored", seen)
    b = ratoon.branch(1)
    if b.index is not None:
        ratoon.finish(seen)
    show("parent", seen)
    show_results(b)


def environment():
    before = ratoon.whoami(), {n: b.limit for n, b in ratoon.budget().items()}
    for name in list(os.environ):
        if name.startswith("RATOON_"):
            del os.environ[name]
    os.environ |= {"RATOON_NODE": "0.7", "RATOON_TIMELINE": "tl-aaaaaaaaaaaaaaaa", "RATOON_MAX_DEPTH": "99"}
    show("same", (ratoon.whoami(), {n: b.limit for n, b in ratoon.budget().items()}) == before)


def patched():
    before = ratoon.whoami()
    ratoon._wire.MAX_BRANCH = 1 << 40
    ratoon._wire.MAX_LABEL = 1 << 40
    show("branch", code(ratoon.branch, 5000))
    show("label", code(ratoon.snapshot, "x" * 5000))
    show("same", ratoon.whoami() == before)


def raw():
    import msgpack

    def ask(data, more=True):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect("/run/ratoon/agent.sock")
            s.sendall(data)
            if not more:
                s.shutdown(socket.SHUT_WR)
            answer = s.makefile("rb")
            length = answer.read(4)
            if not length:
                return "closed"
            return msgpack.unpackb(answer.read(int.from_bytes(length, "big")))["error"]["code"]

    def frame(**fields):
        body = msgpack.packb(fields)
        return len(body).to_bytes(4, "big") + body

    before = ratoon.whoami(), {n: b.limit for n, b in ratoon.budget().items()}
    show("garbage", ask(b"\0\0\0\4\xff\xff\xff\xff"))
    show("huge", ask(b"\xff\xff\xff\xff"))
    show("cut", ask(frame(version=1, kind="whoami")[:-3], more=False))
    show("version", ask(frame(version=99, kind="whoami", arguments=b"")))
    show("kind", ask(frame(version=1, kind="raise_budget", arguments=b"")))
    show("arguments", ask(frame(version=1, kind="snapshot", arguments=b"\xdd\xff\xff\xff\xff")))
    target = msgpack.packb({"id": "cp-aaaaaaaaaaaaaaaa"})
    show("forged", ask(frame(version=1, kind="restore", watch=1, timeline="tl-aaaaaaaaaaaaaaaa", arguments=target)))
    show("same", (ratoon.whoami(), {n: b.limit for n, b in ratoon.budget().items()}) == before)


def over_depth():
    b = ratoon.branch(1)
    if b.index is not None:
        ratoon.finish(code(ratoon.branch, 1))
    show_results(b)


def over_width():
    show_error("width", ratoon.branch, 4)


def over_live():
    show_error("live", ratoon.branch, 3)


def over_memory():
    show_error("memory", ratoon.branch, 2)


def over_calls():
    show("first", ratoon.llm_query("one"))
    show("second", ratoon.llm_query("two"))
    show_error("third", ratoon.llm_query, "three")


def unfrozen():
    seen = []
    ratoon.on_resume(lambda reason, slept, lost: seen.append(reason))
    for call, n in (ratoon.branch, 4), (ratoon.branch, 3), (ratoon.branch, 2):
        code(call, n)
    show("stopped", seen)


def over_disk():
    made = 0
    while (last := code(ratoon.snapshot, f"{made}")) == "ok" and made < 50:
        made += 1
    show("disk", last, made > 0)


def model():
    show("answer", ratoon.llm_query("hello"))
    show("named", ratoon.llm_query("hello", model="other"))
    show("failed", code(ratoon.llm_query, "fail"))


def batched():
    show("answers", ratoon.llm_query_batched(["a", "b", "c"]))


def flight():
    outcome = []

    def ask():
        try:
            outcome.append(ratoon.llm_query("hold"))
        except ratoon.RatoonError as error:
            outcome.append(error.code)

    asker = threading.Thread(target=ask)
    asker.start()
    ratoon.llm_query("await hold")
    b = ratoon.branch(1)
    if b.index is not None:
        asker.join()
        ratoon.finish(outcome)
    show_results(b)
    ratoon.llm_query("release")
    asker.join()
    show("parent", outcome)


def siblings():
    b = ratoon.branch(8)
    if b.index is not None:
        ratoon.finish(ratoon.llm_query(f"sibling {b.index}"))
    show_results(b)
    show("calls", ratoon.budget()["llm_calls"].used)


for name in sys.argv[1:]:
    print("==", name, flush=True)
    globals()[name]()
