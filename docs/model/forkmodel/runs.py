"""The committed runs of the unchanged protocol, and how many states they have."""
from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """One search: names as in scenario.py, and how many states it has."""

    mode: str
    operations: tuple[str, ...]
    faults: int  # at most so many in one execution
    options: tuple[str, ...]
    states: int


# Less than a minute in all, with CPython.
QUICK: tuple[Run, ...] = (
    Run("root", ("snapshot",), 3, (), 11063),
    Run("per-user", ("snapshot",), 3, (), 2454),
    Run("per-user", ("snapshot-durable",), 3, ("host-crash",), 4059),
    Run("root", ("operator-snapshot",), 3, (), 7571),
    Run("root", ("rebase",), 2, ("worker-death",), 6344),
    Run("per-user", ("rebase",), 3, (), 4341),
    Run("root", ("hibernate",), 3, ("host-crash",), 13903),
    Run("per-user", ("hibernate",), 3, ("host-crash",), 5637),
    Run("root", ("llm-query", "rebase"), 2, (), 6468),
    Run("root", ("restore",), 2, ("host-crash",), 4903),
    Run("per-user", ("restore",), 2, ("worker-death",), 2793),
    Run("root", ("operator-restore",), 2, (), 3007),
    Run("root", ("branch",), 1, ("child-finish",), 6171),
    Run("per-user", ("branch",), 1, ("child-finish",), 3683),
    Run("root", ("branch-waves",), 1, (), 2070),
    Run("per-user", ("branch-waves",), 1, ("child-finish",), 3521),
    Run("root", ("branch-min-ok",), 1, (), 2884),
    Run("root", ("branch-at",), 1, (), 1818),
    Run("root", ("operator-branch-at",), 2, (), 5577),
    Run("root", ("branch",), 1, ("child-restore",), 6159),
    Run("per-user", ("branch",), 1, ("child-restore",), 4054),
    Run("root", ("branch", "adopt"), 1, ("child-finish-keep",), 7822),
    Run("per-user", ("branch", "adopt"), 1, ("child-finish-keep",), 5343),
)

# For pypy3.
RUNS: tuple[Run, ...] = QUICK + (
    Run("root", ("snapshot-durable",), 3, ("host-crash",), 15396),
    Run("root", ("rebase",), 3, (), 14747),
    Run("root", ("llm-query", "hibernate"), 3, ("host-crash", "worker-death"), 70296),
    Run("per-user", ("llm-query", "hibernate"), 3, ("host-crash", "worker-death"), 23519),
    Run("root", ("restore",), 3, (), 13557),
    Run("root", ("operator-restore",), 3, (), 10044),
    Run("root", ("branch",), 2, (), 26479),
    Run("root", ("branch",), 2, ("worker-death",), 42422),
    Run("root", ("branch",), 2, ("child-finish",), 62964),
    Run("root", ("branch",), 2, ("child-restore",), 65152),
    Run("root", ("branch-waves",), 2, (), 19112),
    Run("root", ("branch-min-ok",), 2, (), 28169),
    Run("root", ("branch-at",), 2, (), 16363),
    Run("root", ("branch", "adopt"), 2, ("child-finish-keep",), 79793),
    Run("root", ("snapshot", "snapshot"), 2, (), 60580),
    Run("per-user", ("snapshot", "branch"), 1, (), 30401),
    Run("root", ("snapshot", "branch"), 2, (), 322517),
    Run("root", ("branch", "operator-restore"), 1, (), 37140),
    Run("root", ("rebase", "branch"), 1, (), 41760),
    Run("root", ("rebase", "restore"), 1, (), 13325),
    Run("root", ("snapshot", "hibernate"), 2, (), 85516),
)
