"""Flags and commands that the command line adds to the library's messages.

An error of the library says what to do without naming a flag or a command. Its `hint` is a key of
`HINTS`, optionally followed by a colon and a value for the braces.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from classgrad.errors import Stopped, UserError

HINTS = {
    "fetch": "classgrad data fetch {}",
    "force": "--force",
    "fresh": "--fresh starts again",
    "model": "--model",
    "network": "--network mlp",
    "other_run": "--out names another folder, --fresh starts again",
    "resume": "the same command resumes it",
    "resume_fresh": "the same command without --fresh resumes it",
    "skip_bad": "--skip-bad",
    "tensorboard": "--tensorboard",
}


def with_hint(message: str, hint: str | None) -> str:
    """Return a message followed by its hint's flag or command, if it has a hint.

    >>> with_hint("MNIST is missing; fetch it", "fetch:mnist")
    'MNIST is missing; fetch it (classgrad data fetch mnist)'
    """
    name, _, value = (hint or "").partition(":")
    return f"{message} ({HINTS[name].format(value)})" if name in HINTS else message


def error_message(error: UserError) -> str:
    """Return the message of an error as the command line prints it."""
    return with_hint(str(error), error.hint)


@contextmanager
def resumed_without_fresh(fresh: bool) -> Iterator[None]:
    """If a command was given --fresh, let its errors say that it is resumed without that flag."""
    try:
        yield
    except (Stopped, UserError) as error:
        if fresh and error.hint == "resume":
            error.hint = "resume_fresh"
        raise
