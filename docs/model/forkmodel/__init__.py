"""An explicit-state model of the fork protocol (docs/FORK_PROTOCOL.md).

The model is one small sandbox: a parent, two children, what a restore loads,
and the next incarnation of the parent. A daemon performs operations on it step
by step while messages, guests and faults interleave in every possible way.
A breadth-first search visits every reachable state and checks the properties
of properties.py in each of them, so a reported trace is a shortest one.

Where to look:

    state.py       what a state consists of
    scenario.py    what is fixed during a run: operations, faults, mutants
    expansion.py   how a step of the model is written
    guest.py       the guest's rules
    host/          the daemon's rules, one module per operation
    faults.py      what may go wrong
    properties.py  what must hold
    mutants.py     rules that can be taken away, to see the properties notice
    runs.py        the committed runs and their sizes
    check.py       the search
    cli.py         the command line
"""
