"""The command line: as a process of its own, and what it says of wrong input."""

import os
import subprocess
import sys
from pathlib import Path

from forked import Forked

SRC = Path(__file__).parent.parent / "src"


def started(place, *words, before=()):
    """Start a process of the command line in a folder; `before` is what starts it, if anything."""
    if not before:
        return Forked(["-m", "classgrad", *words], place)
    return subprocess.Popen(
        [*before, sys.executable, "-m", "classgrad", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def one_line(err, *parts):
    """Assert that an error is one line that holds these parts."""
    assert err.startswith("classgrad: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def refused(call, words, message):
    """Assert that words are refused in one line with code 2, and that nothing is written."""
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    one_line(err, message)
    assert list(Path().iterdir()) == []  # calls are made in an empty folder
