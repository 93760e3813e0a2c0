"""Threads that share a learner: many may predict, or one may learn."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from classgrad.errors import UserError


class Usage:
    """Let threads read a learner at the same time, and one change it when nobody reads."""

    def __init__(self, *, frozen: bool = False) -> None:
        self.frozen = frozen
        self._condition = threading.Condition()
        self._readers = 0
        self._changing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Use the learner in the block; refuse to while it is changed."""
        with self._condition:
            if self._changing:
                raise UserError(
                    "this learner is learning: use a copy that learner.frozen() returned before"
                )
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change the learner in the block, after those who read it are done."""
        if self.frozen:
            raise UserError(
                "a frozen learner only predicts: learn with the one that it is a copy of"
            )
        with self._condition:
            if self._changing:
                raise UserError("this learner is learning in another thread: wait for that")
            self._changing = True
        try:
            with self._condition:
                self._condition.wait_for(lambda: not self._readers)
            yield
        finally:
            with self._condition:
                self._changing = False


class Shared(Protocol):
    """What threads share."""

    usage: Usage


S = TypeVar("S", bound=Shared)
P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[S, P], R]


def reads(method: Method[S, P, R]) -> Method[S, P, R]:
    """Let threads call a method at the same time."""

    @wraps(method)
    def reading(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.usage.reading():
            return method(self, *args, **kwargs)

    return reading


def changes(method: Method[S, P, R]) -> Method[S, P, R]:
    """Let one thread at a time call a method, when no other uses the object."""

    @wraps(method)
    def changing(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.usage.changing():
            return method(self, *args, **kwargs)

    return changing
