"""Tables of the comparison of a section: for the page, as Markdown and as CSV; details of runs."""

import csv
import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from classgrad.errors import UserError
from classgrad.report.page.summary import Row, Section
from classgrad.report.records import has_grown
from classgrad.report.text import duration, markdown_table, ranges, size
from classgrad.runs.record import MeanStd, RunRecord
from classgrad.runs.spec import Plan, make_plan

PARTS = ("method", "training", "network_options", "benchmark_options")


def details(run: RunRecord) -> list[tuple[str, str]]:
    """Return the details of a run, each with a title."""
    device = f"{run.device}, {run.processes} processes" if run.processes > 1 else run.device
    pairs = [
        ("command", command_of(run) or ""),
        ("recipe, network", f"{run.recipe}, {run.network}, {run.parameters:,} parameters"),
        *((part.replace("_", " "), _settings(getattr(run, part))) for part in PARTS),
        ("data", "; ".join(run.data_notes)),
        ("device", device),
        ("time", duration(run.seconds.total)),
        ("versions", ", ".join(f"{name} {number}" for name, number in run.versions.items())),
    ]
    return [(name, text) for name, text in pairs if text]


def progress_of(run: RunRecord) -> str:
    """Return how many tasks an incomplete run has learnt."""
    return f"incomplete: {len(run.accuracy_matrix)} of {len(run.tasks)} tasks"


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())


def command_of(record: RunRecord) -> str | None:
    """Return the command that repeats a run, or None if there is none.

    There is none for streams, methods and recipes of the user's own.
    """
    try:
        saved, default = Plan.from_dict(record.settings()).as_dict(), _plan(record, {}).as_dict()
        values = {
            name: value
            for part in PARTS
            for name, value in saved[part].items()
            if value != default[part].get(name)
        }
        plan = _plan(record, values)
    except UserError:
        return None
    if {**saved, "defaults": plan.defaults} != plan.as_dict():
        return None
    words = ["classgrad", "run", record.benchmark, "--method", record.method_name]
    words += ["--network", record.network, "--recipe", record.recipe, "--seed", str(record.seed)]
    for name, value in values.items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def _plan(record: RunRecord, values: dict[str, Any]) -> Plan:
    return make_plan(
        record.benchmark,
        record.method_name,
        network=record.network,
        recipe=record.recipe,
        seed=record.seed,
        values=values,
    )


NONE = "–"
TASK_FREE = {
    "no task: confidence": "average_accuracy_task_free",
    "no task: prototypes": "average_accuracy_task_free_prototypes",
    "no task: statistics": "average_accuracy_task_free_statistics",
}
MEANINGS = {
    "ACC": "mean accuracy over all tasks at the end, in per cent.",
    "BWT": "backward transfer: mean change of the accuracy on a task from when it was learnt to "
    "the end, in points; negative means forgetting.",
    "no task": "ACC when the task of an image is unknown: by the most confident head, by the "
    "nearest prototype of a class, or by the discriminant of class statistics.",
    "batches of one task": "measured as in older versions, and too high: BatchNorm saw the task.",
    "difference": "ACC minus that of the reference, seed by seed, over the seeds both have: mean ± "
    "standard deviation.",
    "paper": "the published figure, and how far the row is from it: ≈ within the tolerance of the "
    "experiment, ≠ beyond it.",
}


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, the value it is sorted by, and a remark in small print."""

    text: str
    value: float | None = None
    remark: str = ""
    differs: bool = False


def columns(section: Section) -> list[str]:
    """Return the headings of columns that are not empty for a section."""
    rows = section.rows
    lines = [paper.line for row in rows for paper in row.papers]
    optional = {
        **{name: any(row.of(key) for row in rows) for name, key in TASK_FREE.items()},
        "difference": len(rows) > 1,
        "paper ACC": bool(lines),
        "paper BWT": any(line.transfer is not None for line in lines),
        "capacity": has_grown(run for row in rows for run in row.counted),
    }
    return [name for name in cells(section, rows[0]) if optional.get(name, True)]


def cells(section: Section, row: Row) -> dict[str, Cell]:
    """Return the cells of a row by heading, with those of optional columns."""
    transfer, capacity = row.of("backward_transfer"), row.of("capacity")
    difference = None if row is section.reference else section.difference(row)
    left_out = f"+ {row.left_out} incomplete" if row.left_out else ""
    return {
        "ACC %": _figure(row.accuracy),
        "BWT": _figure(transfer, signed=True),
        **{name: _task_free(row, key) for name, key in TASK_FREE.items()},
        "difference": _figure(difference, signed=True),
        "paper ACC": _published(row, row.accuracy, "accuracy"),
        "paper BWT": _published(row, transfer, "transfer", signed=True),
        "seeds": Cell(ranges(row.seeds), len(row.seeds), left_out),
        "time": Cell(duration(row.seconds), row.seconds),
        "memory": Cell(size(round(row.memory)), row.memory),
        "capacity": Cell(f"{capacity.mean:.0f} %", capacity.mean) if capacity else Cell(NONE),
    }


def _figure(figure: MeanStd | None, signed: bool = False) -> Cell:
    return Cell(figure.text(signed), figure.mean) if figure else Cell(NONE)


def _task_free(row: Row, name: str) -> Cell:
    """Return accuracy without the task, with a remark if batches revealed the task."""
    cell = _figure(row.of(name))
    revealed = cell.value is not None and any(run.reveals_task for run in row.counted)
    return replace(cell, remark="batches of one task") if revealed else cell


def _published(row: Row, measured: MeanStd | None, name: str, signed: bool = False) -> Cell:
    """Return the published figures for a row, and whether it is within tolerance."""
    papers = {getattr(paper.line, name): paper for paper in row.papers}
    papers.pop(None, None)
    if not papers:
        return Cell(NONE)
    texts = " or ".join(MeanStd(value).text(signed) for value in papers)
    value, paper = next(iter(papers.items()))
    repeated = getattr(paper, f"{name}_repeated")
    if measured is None or repeated is None:
        return Cell(texts, value)
    difference = MeanStd(measured.mean - value).text(signed=True)
    return Cell(texts, value, f"{'≈' if repeated else '≠'} {difference}", not repeated)


def caption(section: Section) -> str:
    """Return the caption: whether figures are means, and what differences refer to."""
    several = any(len(row.seeds) > 1 for row in section.rows)
    sentences = ["Mean ± standard deviation over seeds."] if several else []
    if len(section.rows) > 1:
        sentences.append(f"Difference: of ACC to {section.reference.label}, seed by seed.")
    return " ".join(sentences)


def badges(section: Section, row: Row) -> list[str]:
    """Return remarks beside the name of a row: its progress if incomplete, or "reference"."""
    progress = [] if row.complete else [progress_of(row.counted[0])]
    is_reference = row is section.reference and len(section.rows) > 1
    return [*progress, "reference"] if is_reference else progress


def meanings(section: Section) -> list[tuple[str, str]]:
    """Return the columns and remarks of a section with their meanings."""
    names = " ".join(columns(section))
    names += " ".join(cell.remark for row in section.rows for cell in cells(section, row).values())
    return [(word, text) for word, text in MEANINGS.items() if word in names]


def sources(section: Section) -> list[tuple[str, str]]:
    """Return the sources of the published figures of a section, with their tolerances."""
    return [
        (
            f"{row.label}: {paper.line.source}",
            f"A figure counts as repeated within ± {paper.line.tolerance:g}.",
        )
        for row in section.rows
        for paper in row.papers
    ]


def markdown(sections: Sequence[Section]) -> str:
    """Return the comparisons as Markdown."""
    return "\n".join(_markdown(section, titled=len(sections) > 1) for section in sections)


def _markdown(section: Section, titled: bool) -> str:
    names = columns(section)
    lines = [["method", *names]]
    for row in section.rows:
        name = " ".join([row.label, *(f"({words})" for words in badges(section, row))])
        row_cells = cells(section, row)
        texts = [f"{row_cells[name].text} {row_cells[name].remark}" for name in names]
        lines.append([_escaped(text) for text in (name, *texts)])
    title = f"## {_escaped(section.title)}\n\n" if titled else ""
    return f"{title}{markdown_table(lines)}\n{_escaped(caption(section))}\n"


def _escaped(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


HEAD = ["benchmark", "method", "complete", "seeds", "acc", "acc_sd", "bwt", "bwt_sd"]
HEAD += ["no_task_confidence", "no_task_confidence_sd", "no_task_prototypes"]
HEAD += [
    "no_task_prototypes_sd",
    "no_task_statistics",
    "no_task_statistics_sd",
    "difference",
    "difference_sd",
    "reference",
    "paper_acc",
]
HEAD += ["paper_acc_repeated", "paper_bwt", "paper_bwt_repeated", "seconds", "memory_bytes"]
HEAD += ["no_task_reveals_task"]


def comma_separated(sections: Sequence[Section]) -> str:
    """Return the comparisons as CSV, with all digits; missing values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEAD)
    for section in sections:
        for row in section.rows:
            writer.writerow(_fields(section, row))
    return file.getvalue()


def _fields(section: Section, row: Row) -> list[object]:
    def pair(figure: MeanStd | None) -> list[object]:
        return [figure.mean, figure.std] if figure else [None, None]

    published: list[object] = [None] * 4
    if row.papers:
        paper = row.papers[0]
        published = [paper.line.accuracy, paper.accuracy_repeated]
        published += [paper.line.transfer, paper.transfer_repeated]
    measured = ("average_accuracy", "backward_transfer", *TASK_FREE.values())
    return [
        *(section.title, row.label, row.complete, " ".join(map(str, row.seeds))),
        *(value for name in measured for value in pair(row.of(name))),
        *pair(None if row is section.reference else section.difference(row)),
        section.reference.label,
        *published,
        *(row.seconds, row.memory, any(run.reveals_task for run in row.counted)),
    ]
