"""The committed runs."""
from __future__ import annotations

from typing import NamedTuple, Tuple


class Run(NamedTuple):
    """One search: names as in scenario.py, and how many states it has."""

    mode: str
    operations: Tuple[str, ...]
    faults: int
    options: Tuple[str, ...]
    states: int
