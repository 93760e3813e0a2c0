"""Markup from text: whatever is not markup already is escaped."""

from html import escape

EMPTY = {"meta", "rect", "path", "circle", "line"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an element; `class_` and `data_tip` stand for class and data-tip, None for nothing.

    >>> element("p", "a < b", element("b", "c"), class_="note", title=None)
    '<p class="note">a &lt; b<b>c</b></p>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY and not children:
        return Markup(f"<{name}{pairs}/>")
    return Markup(f"<{name}{pairs}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Return markup one after another; text in between is escaped."""
    parts = (c if isinstance(c, Markup) else escape(c, quote=False) for c in children)
    return Markup("".join(parts))


def badge(text: str, kind: str = "badge") -> Markup:
    """Return a word or two beside a name, with a space before them for those who read the text."""
    return joined(" ", element("span", text, class_=kind))


def _plain(value: object) -> str:
    """Return the shortest text of a coordinate, and any other value as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
