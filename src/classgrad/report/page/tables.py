"""The comparison as a table: for the page, as Markdown and as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from classgrad.report.page.markup import Markup, badge, element
from classgrad.report.page.published import Paper
from classgrad.report.page.runs import state_of
from classgrad.report.page.summary import Row, Section
from classgrad.report.page.words import duration, ranges
from classgrad.report.statistics import Spread
from classgrad.report.terminal import size

NONE = "–"
TASK_FREE = {
    "no task: confidence": "average_accuracy_task_free",
    "no task: prototypes": "average_accuracy_task_free_prototypes",
}


@dataclass(frozen=True)
class Cell:
    """One entry: its text, the value it is sorted by, and a remark in small print."""

    text: str
    value: float | None = None
    remark: str = ""
    differs: bool = False


def comparison_table(section: Section) -> Markup:
    """Return the table of a section, whose columns can be sorted."""
    names = columns(section)
    head = [
        element(
            "th",
            element("button", name, type="button"),
            scope="col",
            aria_sort=order,
            role="columnheader",
        )
        for name, order in zip(names, _orders(names), strict=True)
    ]
    lines = [_line(section, row, names) for row in section.rows]
    table = element(
        "table",
        *([element("caption", caption(section))] if caption(section) else []),
        element("thead", element("tr", *head, role="row"), role="rowgroup"),
        element("tbody", *lines, role="rowgroup"),
        id=f"comparison-{section.number}",
        class_="sortable",
        role="table",
    )
    told = f"Comparison on {section.title}"
    return element("div", table, class_="scroll", role="region", tabindex="0", aria_label=told)


def _orders(names: Sequence[str]) -> list[str]:
    return ["descending" if name == "ACC %" else "none" for name in names]


def _line(section: Section, row: Row, names: Sequence[str]) -> Markup:
    marks = [] if row.complete else [badge(state_of(row.counted[0]))]
    if row is section.reference and "difference" in names:
        marks.append(badge("reference", "badge quiet"))
    cells = [
        element(
            "td",
            element("span", cell.text, class_="number"),
            *([_remark(cell)] if cell.remark else []),
            data_value=None if cell.value is None else repr(cell.value),
            data_label=name,
            role="cell",
        )
        for name, cell in zip(names[1:], cells_of(section, row, names), strict=True)
    ]
    head = element("th", row.label, *marks, data_value=row.label, scope="row", role="rowheader")
    return element("tr", head, *cells, role="row")


def _remark(cell: Cell) -> Markup:
    return element("small", cell.remark, class_="differs" if cell.differs else None)


def caption(section: Section) -> str:
    """Say what the figures are of."""
    several = any(len(row.seeds) > 1 for row in section.rows)
    words = ["Mean ± standard deviation over seeds."] if several else []
    if "difference" in columns(section):
        words.append(f"Difference: of ACC to {section.reference.label}, seed by seed.")
    return " ".join(words)


def columns(section: Section) -> list[str]:
    """Return what is over the columns; some are there only where there is something in them."""
    papers = [paper for row in section.rows for paper in row.papers]
    names = ["method", "ACC %", "BWT"]
    names += [name for name, key in TASK_FREE.items() if any(row.of(key) for row in section.rows)]
    if len(section.rows) > 1:
        names.append("difference")
    if papers:
        names.append("paper ACC")
    if any(paper.transfer is not None for paper in papers):
        names.append("paper BWT")
    names += ["seeds", "time", "memory"]
    return [*names, "capacity"] if _has_grown(section) else names


def _has_grown(section: Section) -> bool:
    return any(
        run.capacity is not None and round(run.capacity) != 100
        for row in section.rows
        for run in row.counted
    )


def cells_of(section: Section, row: Row, names: Sequence[str]) -> list[Cell]:
    """Return the entries of a row below the columns of these names but the first."""
    cells = [
        _figure(row.accuracy),
        _figure(row.of("backward_transfer"), signed=True),
        *(_figure(row.of(key)) for name, key in TASK_FREE.items() if name in names),
    ]
    if "difference" in names:
        apart = None if row is section.reference else section.difference(row)
        cells.append(_figure(apart, signed=True))
    if "paper ACC" in names:
        cells.append(_paper(row, row.accuracy, "accuracy"))
    if "paper BWT" in names:
        cells.append(_paper(row, row.of("backward_transfer"), "transfer", signed=True))
    left_out = f"+ {row.left_out} incomplete" if row.left_out else ""
    cells += [
        Cell(ranges(row.seeds), len(row.seeds), left_out),
        Cell(duration(row.seconds), row.seconds),
        Cell(size(round(row.memory)), row.memory),
    ]
    if "capacity" in names:
        capacity = row.of("capacity")
        cells.append(Cell(f"{capacity.mean:.0f} %", capacity.mean) if capacity else Cell(NONE))
    return cells


def _figure(found: Spread | None, signed: bool = False) -> Cell:
    return Cell(found.text(signed), found.mean) if found else Cell(NONE)


def _paper(row: Row, own: Spread | None, name: str, signed: bool = False) -> Cell:
    """Return what papers print for a row, with a sign for near enough or not."""
    papers = [paper for paper in row.papers if getattr(paper, name) is not None]
    if not papers:
        return Cell(NONE)
    printed = {getattr(paper, name): paper for paper in papers}
    texts = " or ".join(Spread(value).text(signed) for value in printed)
    value, paper = next(iter(printed.items()))
    repeated = getattr(paper, f"{name}_repeated")
    if own is None or repeated is None:
        return Cell(texts, value)
    apart = Spread(own.mean - value).text(signed=True)
    return Cell(texts, value, f"{'≈' if repeated else '≠'} {apart}", not repeated)


def sources(section: Section) -> list[tuple[Row, Paper]]:
    """Return where the published figures of a section are from."""
    return [(row, paper) for row in section.rows for paper in row.papers]


def markdown(sections: Sequence[Section]) -> str:
    """Return the comparisons as Markdown."""
    return "\n".join(_markdown(section, titled=len(sections) > 1) for section in sections)


def _markdown(section: Section, titled: bool) -> str:
    names = columns(section)
    lines = [names, ["---", *(["---:"] * (len(names) - 1))]]
    for row in section.rows:
        cells = [" ".join([c.text, c.remark]).strip() for c in cells_of(section, row, names)]
        lines.append([_name(section, row), *cells])
    table = "".join(f"| {' | '.join(map(_cell, cells))} |\n" for cells in lines)
    title = f"## {_cell(section.title)}\n\n" if titled else ""
    return f"{title}{table}\n{_cell(caption(section))}\n"


def _name(section: Section, row: Row) -> str:
    state = "" if row.complete else f" ({state_of(row.counted[0])})"
    return (
        row.label
        + state
        + (" (reference)" if row is section.reference and len(section.rows) > 1 else "")
    )


def _cell(text: str) -> str:
    """Return text that cannot be taken for anything else in a Markdown table."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


HEAD = ["benchmark", "method", "complete", "seeds", "acc", "acc_sd", "bwt", "bwt_sd"]
HEAD += ["no_task_confidence", "no_task_confidence_sd", "no_task_prototypes"]
HEAD += ["no_task_prototypes_sd", "difference", "difference_sd", "reference", "paper_acc"]
HEAD += ["paper_acc_repeated", "paper_bwt", "paper_bwt_repeated", "seconds", "memory_bytes"]


def comma_separated(sections: Sequence[Section]) -> str:
    """Return the comparisons as CSV, with all digits; nothing where nothing was measured."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEAD)
    for section in sections:
        for row in section.rows:
            writer.writerow(_fields(section, row))
    return file.getvalue()


def _fields(section: Section, row: Row) -> list[object]:
    def pair(found: Spread | None) -> list[object]:
        return [found.mean, found.deviation] if found else [None, None]

    paper = row.papers[0] if row.papers else None
    seeds = " ".join(map(str, row.seeds))
    measured = ("average_accuracy", "backward_transfer", *TASK_FREE.values())
    return [
        *(section.title, row.label, row.complete, seeds),
        *(value for name in measured for value in pair(row.of(name))),
        *pair(None if row is section.reference else section.difference(row)),
        section.reference.label,
        *([paper.accuracy, paper.accuracy_repeated] if paper else [None, None]),
        *([paper.transfer, paper.transfer_repeated] if paper else [None, None]),
        *(row.seconds, row.memory),
    ]
