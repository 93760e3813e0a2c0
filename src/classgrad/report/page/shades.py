"""The colours of heat maps: from sand to deep blue, ever darker, with text that can be read."""

ANCHORS = [(247, 236, 214), (205, 214, 190), (122, 180, 182), (52, 123, 160), (20, 62, 110)]


def shade(share: float) -> str:
    """Return the colour of a share between 0 and 1.

    >>> shade(0), shade(0.5), shade(2)
    ('#f7ecd6', '#7ab4b6', '#143e6e')
    """
    place = min(max(share, 0.0), 1.0) * (len(ANCHORS) - 1)
    number = min(int(place), len(ANCHORS) - 2)
    low, high, part = ANCHORS[number], ANCHORS[number + 1], place - number
    mixed = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def depth(colour: str) -> str:
    """Say whether a colour is dark, so that white is easier to read on it than black, or light."""
    light = luminance(colour)
    return "light" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "dark"


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG defines it."""
    values = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
