"""Checkpoints: saved atomically, verified when read, locked while in use."""

from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.checkpoints.lock import Lock
from classgrad.checkpoints.manager import CheckpointManager
from classgrad.checkpoints.store import Loaded, Store

__all__ = ["BadCheckpoint", "CheckpointManager", "Loaded", "Lock", "Store"]
