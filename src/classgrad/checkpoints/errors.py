"""The error for what cannot be used of a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from classgrad.errors import UserError

# What code that loads a state raises if something in it is missing, or of another kind, shape or
# size. All else is a mistake in the code, and comes through as what it is.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError)
# All that a state is made of: of these, an attribute that is missing is asked of the wrong kind,
# such as the items of a list.
PLAIN = (type(None), bool, int, float, str, list, tuple, dict, Tensor)


class BadCheckpoint(UserError):
    """What was read of a checkpoint is damaged, or was never written by classgrad."""


@contextmanager
def raising_bad_checkpoint(what: str) -> Iterator[None]:
    """Say in one line that something kept does not fit what it is for, if that is what is wrong."""
    try:
        yield
    except UserError:
        raise
    except (*DAMAGE, AttributeError) as error:
        if isinstance(error, AttributeError) and not _of_plain(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise BadCheckpoint(f"{what} does not fit: {type(error).__name__}: {reason!r}") from error


def _of_plain(error: AttributeError) -> bool:
    """Tell whether it is a plain value that lacks the attribute; without a name, nobody knows."""
    return error.name is not None and isinstance(error.obj, PLAIN)
