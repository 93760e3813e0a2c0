"""Names of runs that are shown together: lines of experiments, or methods with what differs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from classgrad.report.lines import ExperimentLine, lines_of
from classgrad.report.records import (
    UNSET,
    grouped,
    key_of,
    settings_of_all,
    streams,
    value_text,
)
from classgrad.runs.record import RunRecord

# Settings that make runs of different methods hard to compare: if they differ, all names have them.
BUDGET = ("network", "epochs")


def names(records: Sequence[RunRecord], lines: Sequence[ExperimentLine] = ()) -> list[str]:
    """Name each run by what differs among all runs of its stream that are shown.

    A run of one of the `lines` has the line's name. Another has its method's, with all settings in
    which the runs of this method differ. If budgets differ anywhere, every name has them. Names of
    runs that differ in anything but the seed are never equal; repeats of a run are numbered.
    """
    result: dict[int, list[str]] = {}  # by identity; a record can be given twice
    for stream in streams(records):
        groups = grouped(stream)
        for group, name in zip(groups, _group_names(groups, lines), strict=True):
            seen: Counter[int] = Counter()
            for record in group:
                seen[record.seed] += 1
                repeats = seen[record.seed] - 1
                text = f"{name} (repeat {repeats})" if repeats else name
                result.setdefault(id(record), []).append(text)
    return [result[id(record)].pop(0) for record in records]


def experiments_of(records: Sequence[RunRecord], lines: Sequence[ExperimentLine]) -> list[str]:
    """Return the experiments whose lines some of the runs have their names from."""
    firsts = [[group[0] for group in grouped(stream)] for stream in streams(records)]
    found = [name for stream in firsts for name, _ in _line_names(stream, lines).values()]
    return list(dict.fromkeys(found))


def _group_names(
    groups: Sequence[Sequence[RunRecord]], lines: Sequence[ExperimentLine]
) -> list[str]:
    """Name groups of runs on one stream; the runs of a group differ in the seed only."""
    firsts = [group[0] for group in groups]
    settings = settings_of_all(firsts)
    of_lines = _line_names(firsts, lines)
    budget = [n for n in BUDGET if len({key_of(each.get(n)) for each in settings}) > 1]
    result = []
    for index, record in enumerate(firsts):
        same_method = [
            other
            for other, run in zip(settings, firsts, strict=True)
            if run.method_name == record.method_name
        ]
        differ = _differing(same_method)
        own = settings[index]
        if index in of_lines:
            pairs = [_pair(name, own, settings) for name in budget if name in own]
            _, name = of_lines[index]
            result.append(f"{name} ({', '.join(pairs)})" if pairs else name)
        else:
            shown = [*(name for name in budget if name in own or name in differ)]
            shown += [name for name in differ if name not in budget]
            pairs = [
                _pair(name, own, settings if name in budget else same_method) for name in shown
            ]
            result.append(" ".join([record.method_name, *pairs]))
    return _told_apart(result)


def _line_names(
    records: Sequence[RunRecord], lines: Sequence[ExperimentLine]
) -> dict[int, tuple[str, str]]:
    """Return experiment and name of runs that belong to lines, by index.

    The experiment with most of the runs names them, then that with most of the others. Lines of
    different experiments can have one name: only the first experiment's are without its own name.
    """
    every: dict[str, dict[int, str]] = {line.experiment: {} for line in lines}
    for index, record in enumerate(records):
        for line in lines_of(record, lines):
            every[line.experiment].setdefault(index, line.label)
    matches = {name: found for name, found in every.items() if found}
    result: dict[int, tuple[str, str]] = {}
    first: str | None = None
    while matches:
        left = {name: [i for i in found if i not in result] for name, found in matches.items()}
        experiment = max(left, key=lambda name: len(left[name]))
        found = matches.pop(experiment)
        first = first or experiment
        taken = {line.label for line in lines if line.experiment == first != experiment}
        for index in left[experiment]:
            label = found[index]
            name = f"{label} ({experiment})" if label in taken else label
            result[index] = experiment, name
    return result


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings in which some runs differ; one that a run lacks differs, too."""
    every = dict.fromkeys(name for each in settings for name in each)
    first = settings[0]
    return [
        name for name in every if any(_key(each, name) != _key(first, name) for each in settings)
    ]


def _key(settings: Mapping[str, Any], name: str) -> str:
    return key_of(settings[name]) if name in settings else ""


def _pair(name: str, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Return name=value; values that are equal when they are shortened are numbered."""
    values = {_key(each, name): each.get(name, UNSET) for each in [*others, own]}
    texts = {key: value_text(value) for key, value in values.items()}
    text = texts[_key(own, name)]
    alike = [key for key, other in texts.items() if other == text]
    number = f"#{alike.index(_key(own, name)) + 1}" if len(alike) > 1 else ""
    return f"{name}={text}{number}"


def _told_apart(texts: Sequence[str]) -> list[str]:
    """Number names that are equal."""
    result: list[str] = []
    for text in texts:
        numbered = (f"{text} ({number})" for number in count(2))
        result.append(text if text not in result else next(n for n in numbered if n not in result))
    return result
