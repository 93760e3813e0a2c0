"""Experiments: the runs behind a table or figure of a paper, carried out several at once."""

from classgrad.experiments.spec import Experiment, Line, Published, load, load_many, names

__all__ = ["Experiment", "Line", "Published", "load", "load_many", "names"]
