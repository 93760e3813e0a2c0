"""An HTML page of runs that opens offline: a comparison, figures with their values, every run."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from classgrad.errors import UserError, counted
from classgrad.report.lines import ExperimentLine
from classgrad.report.page import drawing, tables, verdict
from classgrad.report.page.figures import figures
from classgrad.report.page.summary import Section, sections
from classgrad.report.records import stream_name
from classgrad.runs.record import RunRecord


@dataclass(frozen=True)
class Live:
    """Additions to a page that follows runs: the version of its records, and news on top."""

    version: str
    news: Sequence[str]


def page(
    records: Sequence[RunRecord],
    *,
    title: str | None = None,
    against: str | None = None,
    published: Sequence[ExperimentLine] = (),
    live: Live | None = None,
) -> str:
    """Return a self-contained page that compares runs.

    Differences are to the best row of a benchmark, or to the one whose label is `against`.
    `published` has the figures of papers, and `live` is for a page that follows runs.
    """
    if not records:
        raise UserError("there are no runs to compare: give folders of runs")
    return page_of(sections(records, against, published), title=title, live=live)


def page_of(
    compared: Sequence[Section], *, title: str | None = None, live: Live | None = None
) -> str:
    """Return the self-contained page of some sections."""
    names = dict.fromkeys(stream_name(section.rows[0].runs[0]) for section in compared)
    on = " and ".join(names) if len(names) < 3 else counted(len(names), "benchmark")
    title = title or f"Continual learning on {on}"
    rows = [row for section in compared for row in section.rows]
    methods = counted(len({row.runs[0].method_name for row in rows}), "method")
    count = counted(sum(len(row.runs) for row in rows), "run")
    where = f"over {counted(len(compared[0].tasks), 'task')}"
    if len(compared) > 1:
        where = f"on {len(compared)} benchmarks"
    lead = f"{methods} in {count} {where}: accuracy, forgetting and cost."
    return _document(title, lead, compared, live)


def waiting_page(live: Live) -> str:
    """Return the page that follows runs before there is anything to compare."""
    lead = "Runs appear on this page when they have learnt their first task."
    return _document("No run has finished a task yet", lead, [], live)


def _document(title: str, lead: str, compared: Sequence[Section], live: Live | None) -> str:
    """Fill the template; a live page asks its server for later versions of itself."""
    style, script = _file("style.css"), _file("script.js") + (_file("watch.js") if live else "")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if live else "")
    )
    return _template().render(
        title=title,
        lead=lead,
        sections=compared,
        live=live,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        version=version("classgrad"),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("classgrad.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        drawing=drawing, figures=figures, tables=tables, verdict=verdict, counted=counted
    )
    return environment.get_template("page.html")


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
