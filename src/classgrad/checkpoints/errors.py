"""The error for what cannot be used of a checkpoint."""

from classgrad.errors import UserError


class BadCheckpoint(UserError):
    """What was read of a checkpoint is damaged, or was never written by classgrad."""
