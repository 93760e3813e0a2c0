"""What every drawing is made of."""

from collections.abc import Sequence

from classgrad.report.page.figures import Mark
from classgrad.report.page.markup import Markup, element, joined


def brief(label: str, most: int) -> str:
    """Return a label without the names of settings if it is too long, and no more than its start.

    >>> brief("cgp similarity=0.7 contrast=0.1", 14), brief("gpm", 14)
    ('cgp 0.7 0.1', 'gpm')
    """
    words = label.split() if len(label) > most else [label]
    return short(" ".join(word.rpartition("=")[2] or word for word in words), most)


def short(text: str, most: int) -> str:
    """Return at most so many characters of a text.

    >>> short("cgp similarity=0.7", 8)
    'cgp sim…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def picture(width: float, height: float, words: str, parts: Sequence[str]) -> Markup:
    """Return a drawing that fills the width it is given, and what it shows in words."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=words)


def told(name: str, mark: Mark, *children: str, **attributes: object) -> Markup:
    """Return an element that says what it is: by the script, or by its title without it."""
    return element(name, element("title", mark.tip), *children, data_tip=mark.tip, **attributes)


def ruled(left: float, right: float, y: float, label: str) -> Markup:
    """Return a line across, with its value at the left."""
    line = element("path", class_="rule", d=f"M{left:g} {y:.1f}H{right:g}")
    return joined(line, written(left - 5, y + 4, label, "end"))


def written(x: float, y: float, text: str, anchor: str, class_: str | None = None) -> Markup:
    """Return text that starts, ends or has its middle at a place."""
    return element("text", text, x=float(x), y=float(y), text_anchor=anchor, class_=class_)
