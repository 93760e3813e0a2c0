"""Records as one page that opens offline: a comparison, figures with their values, every run."""

from collections.abc import Sequence

from classgrad.errors import UserError
from classgrad.report.page.html import Live, document
from classgrad.report.page.summary import Section, sections
from classgrad.runs.record import RunRecord


def page(
    records: Sequence[RunRecord],
    *,
    title: str | None = None,
    against: str | None = None,
    live: Live | None = None,
) -> str:
    """Return a page that compares runs, with all it needs inside.

    Differences are to the best row of a benchmark, or to the one whose label is `against`.
    `live` is what a page has that follows runs.
    """
    if not records:
        raise UserError("there are no runs to compare: give folders of runs")
    return page_of(sections(records, against), title=title, live=live)


def page_of(found: Sequence[Section], *, title: str | None = None, live: Live | None = None) -> str:
    """Return the page of sections, with all it needs inside."""
    return document(title or _title(found), lead(found), found, live)


def _title(found: Sequence[Section]) -> str:
    names = list(dict.fromkeys(section.rows[0].runs[0].benchmark for section in found))
    return "Continual learning on " + ", ".join(names)


def lead(found: Sequence[Section]) -> str:
    """Say in one sentence what is compared."""
    rows = [row for section in found for row in section.rows]
    runs = sum(len(row.runs) for row in rows)
    methods = len({row.runs[0].method_name for row in rows})
    first = f"{_count(methods, 'method')} in {_count(runs, 'run')}"
    if len(found) > 1:
        return (
            f"{first} on {len(found)} benchmarks: what they learn, what they keep, what it costs."
        )
    count = len(found[0].tasks)
    return f"{first} over {_count(count, 'task')}: what they learn, what they keep, what it costs."


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
