"""The command line in a process that something happens to: DRIVEN="signal rank step"."""

import os
import signal

from classgrad import cli
from classgrad.loop import Loop

kind, rank, number = os.environ["DRIVEN"].split()
step, seen = Loop.step, []


def driven(self, *given):
    """Take a step; in a certain one of the first start a signal comes."""
    seen.append(1)
    mine = os.environ.get("RANK", "0") == rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if mine == "0" and len(seen) == int(number):
        os.kill(os.getpid(), getattr(signal, kind))
    return step(self, *given)


Loop.step = driven
cli.main()
