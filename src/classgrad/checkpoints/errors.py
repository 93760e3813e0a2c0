"""The error for a checkpoint that cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from classgrad.errors import UserError

# What loading a state raises if something in it is missing, or has another type, shape or size.
# A bug can raise the same, so the message names both, and the error is chained to it. Any other
# error is a bug, and is not caught.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError)
# All types that a state is made of. An AttributeError of one of them means that a value has the
# wrong type, such as a list where `.items()` is called.
PLAIN = (type(None), bool, int, float, str, list, tuple, dict, Tensor)


class BadCheckpoint(UserError):
    """A checkpoint is damaged, or was not written by classgrad."""


@contextmanager
def raising_bad_checkpoint(what: str) -> Iterator[None]:
    """Turn errors that a damaged or foreign state causes into a BadCheckpoint of one line."""
    try:
        yield
    except UserError:
        raise
    except (*DAMAGE, AttributeError) as error:
        if isinstance(error, AttributeError) and not _of_plain(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise BadCheckpoint(
            f"{what} does not fit: {type(error).__name__}: {reason!r}; restore a copy if it was "
            "changed, else this is a bug in the code that loads it"
        ) from error


def _of_plain(error: AttributeError) -> bool:
    """Tell whether the object that lacks the attribute is a plain value; no, if it is unknown."""
    return error.name is not None and isinstance(error.obj, PLAIN)
