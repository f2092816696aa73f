"""The daemon: one module per operation.

Every step is registered under its name in expansion.DAEMON_STEPS; importing
this package registers them all.
"""
from . import branch, checkpoint, daemon, finish, move, recovery, restore, settle

__all__ = ["branch", "checkpoint", "daemon", "finish", "move", "recovery", "restore", "settle"]
