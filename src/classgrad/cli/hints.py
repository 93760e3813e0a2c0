"""What the library's advice is called on the command line.

An error of the library says what to do without naming a flag or a command; its `hint` says which of
these stands for it here. What follows a colon in a hint goes into the braces.
"""

from classgrad.errors import UserError

HINTS = {
    "fetch": "classgrad data fetch {}",
    "force": "--force",
    "fresh": "--fresh starts again",
    "model": "--model",
    "network": "--network mlp",
    "other_run": "--out names another folder, --fresh starts again",
    "skip_bad": "--skip-bad",
    "tensorboard": "--tensorboard",
}


def worded(message: str, hint: str | None) -> str:
    """Return a message with what its hint means on the command line.

    >>> worded("MNIST is missing; fetch it", "fetch:mnist")
    'MNIST is missing; fetch it (classgrad data fetch mnist)'
    """
    name, _, value = (hint or "").partition(":")
    return f"{message} ({HINTS[name].format(value)})" if name in HINTS else message


def told(error: UserError) -> str:
    """Return the message of an error as the command line prints it."""
    return worded(str(error), error.hint)
