"""The page: sections with a comparison and figures, and one document around them."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version

from classgrad.report.page.contents import figures
from classgrad.report.page.drawing import drawings, scale, swatch
from classgrad.report.page.figures import (
    BarPanel,
    Bars,
    DotPanel,
    Figure,
    Heat,
    LinePanel,
    Lines,
    Panel,
    Values,
)
from classgrad.report.page.markup import Markup, element, joined
from classgrad.report.page.runs import run_list
from classgrad.report.page.summary import Section
from classgrad.report.page.tables import columns, comparison_table, sources

WORDS = {
    "ACC": "mean accuracy over all tasks at the end, in per cent.",
    "BWT": "backward transfer: what learning later tasks did to the accuracy on earlier ones, in "
    "points, mean over tasks; below zero is forgetting.",
    "no task": "ACC when it is not told which task an image is of: by the most confident head, or "
    "by the nearest prototype of a class.",
    "difference": "ACC less that of the reference, seed by seed, over the seeds both have: mean ± "
    "standard deviation.",
    "paper": "the published figure, and how far the row is from it: ≈ within the tolerance of the "
    "experiment, ≠ beyond it.",
}


@dataclass(frozen=True)
class Live:
    """What a page has that follows runs: what tells it from a later one, and what is new."""

    version: str
    news: Markup


def document(title: str, lead: str, sections: Sequence[Section], live: Live | None = None) -> str:
    """Return the whole page; a live one asks where it came from for a later version of itself."""
    style, script = (_file(name) for name in ("style.css", "script.js"))
    if live:
        script += _file("watch.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if live else "")
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    several = len(sections) > 1
    content = element(
        "main",
        element("header", element("h1", title), element("p", lead, class_="lead")),
        *([live.news] if live else []),
        *([_contents(sections)] if several else []),
        *(_section(section, section.title if several else "Comparison") for section in sections),
        *([_all_runs(sections)] if sections else []),
        element("footer", f"Made by classgrad {version('classgrad')}."),
        id="content",
        data_version=live.version if live else None,
    )
    told = [element("p", id="watch", role="status")] if live else []
    tip = element("div", id="tip", role="tooltip", hidden="hidden")
    body = element("body", *told, content, tip, element("script", Markup(script)))
    return "<!DOCTYPE html>\n" + element("html", head, body, lang="en") + "\n"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _contents(sections: Sequence[Section]) -> Markup:
    links = [
        element("li", element("a", section.title, href=f"#benchmark-{section.number}"))
        for section in sections
    ]
    return element("nav", element("ul", *links), aria_label="Benchmarks")


def _section(section: Section, title: str) -> Markup:
    names = " ".join(columns(section))
    words = [(word, text) for word, text in WORDS.items() if word in names]
    papers = [
        (
            f"{row.label}: {paper.source}",
            f"A figure counts as repeated within ± {paper.tolerance:g}.",
        )
        for row, paper in sources(section)
    ]
    return element(
        "section",
        element("h2", title),
        comparison_table(section),
        folded("What the columns mean", _defined(words)),
        *([folded("Where the paper's figures are from", _defined(papers))] if papers else []),
        *(_figure(figure) for figure in figures(section)),
        id=f"benchmark-{section.number}",
        data_stream=section.key,
    )


def _defined(pairs: Sequence[tuple[str, str]]) -> Markup:
    return element("dl", *(joined(element("dt", a), element("dd", b)) for a, b in pairs))


def _figure(figure: Figure) -> Markup:
    caption = element("figcaption", element("h3", figure.title), element("p", figure.note))
    panels = [
        element("div", *_panel_title(panel), drawing, class_="panel")
        for panel, drawing in zip(figure.panels, drawings(figure), strict=True)
    ]
    return element(
        "figure",
        caption,
        *_key(figure),
        element("div", *panels, class_=f"panels {_layout(figure)}"),
        folded("Values", value_table(figure.values, figure.title)),
        class_="figure",
        data_kind=figure.kind,
    )


def _panel_title(panel: Panel) -> list[Markup]:
    note = [element("span", panel.note)] if isinstance(panel, DotPanel) else []
    return [element("h4", panel.title, *note)] if panel.title or note else []


def _layout(figure: Figure) -> str:
    """Say how much space a panel needs."""
    if isinstance(figure, Lines) and len(figure.panels) == 1:
        return "one"
    if isinstance(figure, Heat):
        return "narrow" if max(len(panel.cells) for panel in figure.panels) <= 6 else "large"
    return "wide" if isinstance(figure, Bars) else "usual"


def _key(figure: Figure) -> list[Markup]:
    """Say what lines, colours and parts of bars stand for."""
    if isinstance(figure, Heat):
        return [element("p", scale(figure), class_="key")]
    if isinstance(figure, Lines):
        return _line_key(figure.panels)
    return _part_key(figure.panels) if isinstance(figure, Bars) else []


def _line_key(panels: Sequence[LinePanel]) -> list[Markup]:
    styles = {one.label: one.style for panel in panels for one in panel.series}
    if len(styles) == 1 or any(panel.others for panel in panels):
        return []
    items = [element("li", swatch(style), label) for label, style in styles.items()]
    return [element("ul", *items, class_="key")]


def _part_key(panels: Sequence[BarPanel]) -> list[Markup]:
    parts = [(place, name) for panel in panels for place, name in enumerate(panel.parts)]
    items = [element("li", element("i", class_=f"box p{place}"), name) for place, name in parts]
    return [element("ul", *items, class_="key")]


def value_table(values: Values, title: str) -> Markup:
    """Return all that a figure shows as a table."""
    head = element("tr", *(element("th", text, scope="col") for text in values.head))
    lines = [
        element("tr", element("th", line[0], scope="row"), *(element("td", t) for t in line[1:]))
        for line in values.lines
    ]
    table = element("table", element("thead", head), element("tbody", *lines), class_="values")
    # A box that scrolls has to take the focus, for those who scroll with the keyboard.
    return element("div", table, class_="scroll", role="region", tabindex="0", aria_label=title)


def folded(title: str, content: str) -> Markup:
    """Return content that is shown on demand."""
    return element("details", element("summary", title), content)


def _all_runs(sections: Sequence[Section]) -> Markup:
    runs = [
        joined(*([element("h3", section.title)] if len(sections) > 1 else []), run_list(section))
        for section in sections
    ]
    return element("section", element("h2", "Runs"), *runs, id="runs")
