"""Tables of the comparison of a section: for the page, as Markdown and as CSV; details of runs."""

import csv
import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from classgrad.errors import UserError, counted
from classgrad.report.details import facts
from classgrad.report.page.summary import TASK_FREE, Row, Section, differences, track_range
from classgrad.report.page.verdict import headline
from classgrad.report.records import has_grown
from classgrad.report.text import duration, markdown_table, ranges, size
from classgrad.runs.intervals import interval
from classgrad.runs.record import MeanStd, RunRecord, mean_std
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
        *facts(run),
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
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
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
ON_THE_WAY = {
    "incremental": "average_incremental_accuracy",
    "lowest": "lowest_accuracy",
}
WAYS = {f"no task: {way}": name for way, name in TASK_FREE.items()}
LIMITS = ("max_basis_mb", "memory_mb")
PAPER = {"paper ACC": "accuracy", "paper BWT": "transfer"}
MEANINGS = {
    "ACC": "mean accuracy over all tasks at the end, in per cent.",
    "BWT": "backward transfer: mean change of the accuracy on a task from when it was learnt to "
    "the end, in points; negative means forgetting.",
    "when learnt": "mean accuracy on the tasks, each right after it was learnt.",
    "incremental": "mean of ACC over all tasks, each time on the tasks learnt so far.",
    "lowest": "the lowest accuracy of a task from when it was learnt to the end, mean over tasks.",
    "task unknown": "ACC when the task of an image is unknown, by the best way that was measured.",
    "no task": "ACC when the task of an image is unknown: by the discriminant of class statistics, "
    "by the nearest prototype of a class, or by the most confident head.",
    "batches of one task": "measured as in older versions, and too high: BatchNorm saw the task.",
    "free rank": "directions that are not protected at the end, in the layer that has the fewest.",
    "difference": "ACC minus that of the reference, seed by seed, over the seeds both have: mean ± "
    "standard deviation, and in brackets the 95 % interval of the mean.",
    "paper": "the published figure, and how far the row is from it: ≈ within the tolerance of the "
    "experiment, ≠ beyond it, for several seeds by the 95 % interval, and open if that is partly "
    "in it. It is grey if the budgets differ, as a difference then has two reasons.",
    "seeds": "how many runs the figures are a mean of.",
    "memory": "what a method keeps between tasks besides the network, and its limit if it has one.",
    "capacity": "stored parameters in per cent of those of the network.",
}


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, the value it is sorted by, and remarks in small print.

    `difference` is that to the text, a published figure. Its `kind` is "differs" if it is not
    repeated, or "other" if it was measured with another budget, which is the remark then.
    """

    text: str
    value: float | None = None
    remark: str = ""
    difference: str = ""
    kind: str = ""

    @property
    def whole(self) -> str:
        """All of it in one line."""
        return " ".join(part for part in (self.text, self.difference, self.remark) if part)


def columns(section: Section) -> list[str]:
    """Return the headings of columns that are not empty for a section."""
    rows = section.rows
    lines = [paper.line for row in rows for paper in row.papers]
    optional = {
        **{name: any(row.of(key) for row in rows) for name, key in WAYS.items()},
        "when learnt": any(row.when_learnt for row in rows),
        **{name: any(row.of(key) for row in rows) for name, key in ON_THE_WAY.items()},
        "free rank": any(row.free_rank for row in rows),
        "difference": len(rows) > 1,
        "paper ACC": bool(lines),
        "paper BWT": any(line.transfer is not None for line in lines),
        "capacity": has_grown(run for row in rows for run in row.counted),
    }
    return [name for name in cells(section, rows[0]) if optional.get(name, True)]


def best_columns(section: Section) -> list[str]:
    """Return the headings of the table of best lines."""
    rows = section.best
    optional = {
        "task unknown": any(row.task_free for row in rows),
        "free rank": any(row.free_rank for row in rows),
        "paper ACC": any(row.papers for row in rows),
        "capacity": has_grown(run for row in rows for run in row.counted),
    }
    return [name for name in best_cells(section, rows[0]) if optional.get(name, True)]


def best_cells(section: Section, row: Row) -> dict[str, Cell]:
    """Return the cells of a row of the table of best lines, with those of optional columns."""
    every, free = cells(section, row), row.task_free
    unknown = Cell(NONE)
    if free:
        remark = ", too high" if free.revealed else ""
        unknown = replace(_figure(free.accuracy), remark=f"by {free.way}{remark}")
    kept = ("paper ACC", "memory", "capacity", "seeds")
    return {
        "ACC %": every["ACC %"],
        "BWT": every["BWT"],
        "task unknown": unknown if _ways_differ(section) else replace(unknown, remark=""),
        "free rank": every["free rank"],
        "time": every["time"],
        **{name: every[name] for name in kept},
    }


def _ways_differ(section: Section) -> bool:
    """Tell whether figures without the task were measured in different ways."""
    ways = {(row.task_free.way, row.task_free.revealed) for row in section.best if row.task_free}
    return len(ways) > 1


def cells(section: Section, row: Row) -> dict[str, Cell]:
    """Return the cells of a row by heading, with those of optional columns."""
    capacity, free = row.of("capacity"), row.free_rank
    left_out = f"+ {row.left_out} incomplete" if row.left_out else ""
    return {
        "ACC %": _figure(row.accuracy),
        "BWT": _figure(row.transfer, signed=True),
        "when learnt": _figure(row.when_learnt),
        **{name: _figure(row.of(key)) for name, key in ON_THE_WAY.items()},
        **{name: _task_free(row, key) for name, key in WAYS.items()},
        "difference": _difference(section, row),
        **{name: _published(row, key) for name, key in PAPER.items()},
        "free rank": Cell(f"{free.share:.0f} %", free.share, free.layer) if free else Cell(NONE),
        "time": Cell(duration(row.seconds), row.seconds),
        "memory": Cell(size(round(row.memory)), row.memory, _limit(row)),
        "capacity": Cell(f"{capacity.mean:.0f} %", capacity.mean) if capacity else Cell(NONE),
        "seeds": Cell(str(len(row.seeds)), len(row.seeds), left_out),
    }


def _figure(figure: MeanStd | None, signed: bool = False) -> Cell:
    return Cell(figure.text(signed), figure.mean) if figure else Cell(NONE)


def _difference(section: Section, row: Row) -> Cell:
    """Return the difference to the reference, with its interval where seeds are several."""
    if row is section.reference:
        return Cell(NONE)
    each = differences(row, section.reference)
    cell, within = _figure(mean_std(each), signed=True), interval(each)
    return replace(cell, remark=f"({within.ends})") if within else cell


def _limit(row: Row) -> str:
    """Return the limit that a row's settings put on its memory."""
    settings = row.counted[0].method
    limits = [settings[name] for name in LIMITS if settings.get(name) is not None]
    return f"limit {limits[0]:g} MB" if limits else ""


def _task_free(row: Row, name: str) -> Cell:
    """Return accuracy without the task, with a remark if batches revealed the task."""
    cell = _figure(row.of(name))
    revealed = cell.value is not None and any(run.reveals_task for run in row.counted)
    return replace(cell, remark="batches of one task") if revealed else cell


def _published(row: Row, name: str) -> Cell:
    """Return the published figures for a row, and whether it is within tolerance."""
    measured, signed = getattr(row, name), name == "transfer"
    papers = {getattr(paper.line, name): paper for paper in row.papers}
    papers.pop(None, None)
    if not papers:
        return Cell(NONE)
    texts = " or ".join(MeanStd(value).text(signed) for value in papers)
    value, paper = next(iter(papers.items()))
    repeated = getattr(paper, f"{name}_repeated")
    if measured is None or not row.complete:
        return Cell(texts, value)
    difference = MeanStd(measured.mean - value).text(signed=True)
    if paper.other_budget:
        near = "≈ " if repeated else ""
        return Cell(texts, value, paper.other_budget, f"{near}{difference}", "other")
    sign = {True: "≈ ", False: "≠ ", None: ""}[repeated]
    kind = "differs" if repeated is False else ""
    return Cell(texts, value, "" if sign else "open", f"{sign}{difference}", kind)


def about(section: Section) -> str:
    """Return how many tasks and classes a benchmark has."""
    parts = [counted(len(section.tasks), "task")]
    if section.classes:
        parts.append(counted(section.classes, "class"))
    return ", ".join(parts)


def listed(words: Sequence[str]) -> str:
    """Return words as a heading.

    >>> listed(["merged classes", "time and memory"])
    'Merged classes, time and memory'
    """
    text = ", ".join(words)
    return text[:1].upper() + text[1:]


def place(columns: Sequence[str], name: str) -> int:
    """Return how wide a window has to be to have a column: 1 for any, 2, or 3 for wide ones."""
    number = columns.index(name) if name in columns else 0
    return 1 if number < 2 else 2 if number < 5 else 3


def best_caption(section: Section) -> str:
    """Return the caption of the table of best lines."""
    rows = section.best
    many = "" if len(rows) == len(section.rows) else "The best line of each method. "
    drawn = "Drawn: ○ when learnt, ● at the end"
    published = ", | the paper's figure" if any(row.papers for row in rows) else ""
    low, high = track_range(section)
    free = next((row.task_free for row in rows if row.task_free), None)
    way = ""
    if free and not _ways_differ(section):
        high_note = ", too high: batches told BatchNorm the task" if free.revealed else ""
        way = f" Task unknown: by {free.way}{high_note}."
    return f"{many}{drawn}{published}, from {low:g} to {high:g} %. {seeds_note(rows)}{way}"


def caption(section: Section) -> str:
    """Return the caption: over how many seeds, and what differences refer to."""
    sentences = [seeds_note(section.rows)]
    if len(section.rows) > 1:
        sentences.append(f"Difference: of ACC to {section.reference.label}, seed by seed.")
    return " ".join(sentences)


def seeds_note(rows: Sequence[Row]) -> str:
    """Say how many seeds figures are a mean of."""
    if all(len(row.seeds) == 1 for row in rows):
        return "One seed each: a difference of a point can be chance."
    seeds = {tuple(row.seeds) for row in rows}
    which = f" {ranges(next(iter(seeds)))}" if len(seeds) == 1 else ""
    return f"Mean ± standard deviation over seeds{which}."


def budget_of(row: Row) -> str:
    """Return the recipe of a row and its budget."""
    return ", ".join(part for part in (row.recipe, row.budget.text) if part)


def badges(row: Row) -> list[str]:
    """Return remarks beside the name of a row: its progress, and whether it is a bound."""
    progress = [] if row.complete else [progress_of(row.counted[0])]
    return [*progress, *([row.bound] if row.bound else [])]


def compared_badges(section: Section, row: Row) -> list[str]:
    """Return these remarks, and whether others are compared with the row."""
    is_reference = row is section.reference and len(section.rows) > 1
    return [*badges(row), *["reference"] * is_reference]


def meanings(section: Section) -> list[tuple[str, str]]:
    """Return the columns and remarks of a section with their meanings."""
    names = " ".join([*columns(section), *best_columns(section)])
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
        name = " ".join([row.label, *(f"({words})" for words in compared_badges(section, row))])
        row_cells = cells(section, row)
        texts = [row_cells[name].whole for name in names]
        lines.append([_escaped(text) for text in (name, *texts)])
    title = f"## {_escaped(section.title)}\n\n" if titled else ""
    verdict = f"{_escaped(headline(section))}\n\n"
    return f"{title}{verdict}{markdown_table(lines)}\n{_escaped(caption(section))}\n"


def _escaped(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


MEASURED = {
    "acc": "average_accuracy",
    "bwt": "backward_transfer",
    "no_task_confidence": TASK_FREE["confidence"],
    "no_task_prototypes": TASK_FREE["prototypes"],
    "no_task_statistics": TASK_FREE["statistics"],
    **ON_THE_WAY,
}
HEAD = ["benchmark", "method", "complete", "seeds"]
HEAD += [f"{name}{suffix}" for name in MEASURED for suffix in ("", "_sd")]
HEAD += ["difference", "difference_sd", "difference_low", "difference_high", "reference"]
HEAD += ["paper_acc", "paper_acc_repeated", "paper_bwt", "paper_bwt_repeated"]
HEAD += ["seconds", "memory_bytes", "network_bytes", "no_task_reveals_task"]
HEAD += ["recipe", "budget", "paper_budget_differs"]


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

    each = [] if row is section.reference else differences(row, section.reference)
    within = interval(each)
    published: list[object] = [None] * 4
    if row.papers:
        paper = row.papers[0]
        published = [paper.line.accuracy, paper.accuracy_repeated]
        published += [paper.line.transfer, paper.transfer_repeated]
    return [
        *(section.title, row.label, row.complete, " ".join(map(str, row.seeds))),
        *(value for name in MEASURED.values() for value in pair(row.of(name))),
        *pair(mean_std(each)),
        *((within.low, within.high) if within else (None, None)),
        section.reference.label,
        *published,
        *(row.seconds, row.memory, row.network_bytes),
        any(run.reveals_task for run in row.counted),
        *(row.recipe, row.budget.text, row.papers[0].other_budget if row.papers else None),
    ]
