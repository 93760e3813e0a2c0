"""The error for what cannot be used of a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager

from classgrad.errors import UserError


class BadCheckpoint(UserError):
    """What was read of a checkpoint is damaged, or was never written by classgrad."""


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Say in one line that something kept does not fit what it is for, however that shows."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BadCheckpoint(f"{what} does not fit: {type(error).__name__}: {reason!r}") from None
