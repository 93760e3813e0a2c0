"""The exception for mistakes that a user can put right, and helpers for its messages."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """An error that a user can put right; the message is one line and says what to do.

    The command line prints it to standard error and exits with code 2. The message names no flag
    and no command; the command line adds its own advice for a `hint`.

    >>> UserError("3 files cannot be read: remove them", hint="skip_bad").hint
    'skip_bad'
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Diverged(UserError):
    """Training has diverged: a loss, a gradient or an input of a layer became NaN or infinite."""


class RequirementNotMet(UserError):
    """A task was learnt, but not as required, so the learner is as it was; exit code 3."""


def shown(value: object) -> str:
    """Return a value as text for a message: always one line of at most 300 characters.

    >>> print(shown("a/b"), shown("a" + chr(10) + "b"))
    a/b 'a\\nb'
    """
    text = str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 300 else text[:297] + "..."


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "task"), counted(2000, "class")
    ('1 task', '2,000 classes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that is not in a table, with the closest one that is.

    >>> print(unknown("method", "cpg", ["cgp", "gpm"]))
    unknown method 'cpg': did you mean 'cgp'? Known: cgp, gpm
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} '{shown(name)}':{hint} Known: {', '.join(names)}")


class Stopped(BaseException):
    """The process was asked to stop: by Ctrl-C, or by another process; `number` is the signal's.

    `hint` says how to resume, for the command line, as that of a `UserError` does.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number, self.hint = number, "resume"
