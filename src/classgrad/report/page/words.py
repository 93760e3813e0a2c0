"""Amounts in words."""

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Return a time in a readable unit.

    >>> duration(0.25), duration(42), duration(2063), duration(9000)
    ('0.2 s', '42.0 s', '34.4 min', '2.5 h')
    """
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers, those that follow each other as a range.

    >>> ranges([1, 2, 3, 5, 8, 9])
    '1–3, 5, 8, 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return ", ".join(words)
