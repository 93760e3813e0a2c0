"""Experiments: the runs behind a table or figure of a paper, run in parallel."""

from classgrad.experiments.spec import Experiment, Line, Published, load, load_many, names

__all__ = ["Experiment", "Line", "Published", "load", "load_many", "names"]
