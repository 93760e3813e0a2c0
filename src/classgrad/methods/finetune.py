"""Finetune: train on each task in turn and protect nothing; the lower bound of every table."""

from typing import ClassVar

from classgrad.methods.base import Method


class Finetune(Method):
    """The defaults of `Method`: the whole trunk is trained in every task."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "learn each task, protect nothing (the lower bound)"
    parallel: ClassVar[bool] = True
