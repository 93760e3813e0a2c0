"""What a few seeds can tell: intervals of means, paired differences, and whether a figure repeats.

An interval is that of Student's t at 95 %: with three seeds 4.3 standard errors to each side, with
five 2.8. It takes the seeds for a sample of all seeds; with one there is none.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.95

Verdict = Literal["repeated", "not repeated", "open"]


@dataclass(frozen=True)
class Interval:
    """The mean of a figure over `count` seeds, and the interval that it lies in."""

    mean: float
    low: float
    high: float
    count: int

    def text(self) -> str:
        """Return it as text, with signs.

        >>> Interval(1.25, -0.3, 2.8, 3).text()
        '+1.2 (−0.3 to +2.8)'
        """
        return f"{_signed(self.mean)} ({self.ends})"

    @property
    def ends(self) -> str:
        """Its ends as text, with signs."""
        return f"{_signed(self.low)} to {_signed(self.high)}"


def _signed(value: float) -> str:
    # Adding 0 turns a rounded -0 into 0.
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")


def interval(values: Iterable[float | None]) -> Interval | None:
    """Return the interval of a mean; None if a value is missing, or if there is only one.

    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., count=3)
    """
    values = list(values)
    known = [value for value in values if value is not None]
    if len(known) < len(values) or len(known) < 2:
        return None
    mean, error = statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known))
    reach = quantile(len(known) - 1) * error
    return Interval(mean, mean - reach, mean + reach, len(known))


def quantile(degrees: int) -> float:
    """Return the t that Student's distribution exceeds in absolute value in 5 % of all cases."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + LEVEL) / 2))


def paired(one: Mapping[int, float | None], other: Mapping[int, float | None]) -> Interval | None:
    """Return the interval of the difference of two figures by seed, of the seeds both have.

    What a seed makes easier for both does not count: two runs with a seed see the same data.
    """
    pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    return interval(a - b for a, b in pairs if a is not None and b is not None)


def verdict(
    values: Iterable[float | None], published: float | None, tolerance: float
) -> Verdict | None:
    """Tell whether a published figure was repeated; None if either is missing.

    It is if the interval lies within the tolerance of the figure, and is not if all of it lies
    outside. Else it is open: more noise never makes a figure count as repeated.

    >>> verdict([70.0, 70.2, 70.1], 70.0, 1.5), verdict([65.0, 65.2, 65.1], 70.0, 1.5)
    ('repeated', 'not repeated')
    >>> verdict([70.0], 70.0, 1.5), verdict([66.0, 74.0], 70.0, 1.5)
    ('open', 'open')
    """
    values = list(values)
    if published is None or not values or None in values:
        return None
    of_mean = interval(values)
    if of_mean is None:
        return "open"
    low, high = of_mean.low - published, of_mean.high - published
    if -tolerance <= low and high <= tolerance:
        return "repeated"
    return "not repeated" if high < -tolerance or low > tolerance else "open"


def together(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict of several figures: repeated if all that are known are.

    >>> together(["repeated", None, "open"]), together(["open", "not repeated"]), together([None])
    ('open', 'not repeated', None)
    """
    known = [one for one in verdicts if one is not None]
    if "not repeated" in known:
        return "not repeated"
    return ("open" if "open" in known else "repeated") if known else None
