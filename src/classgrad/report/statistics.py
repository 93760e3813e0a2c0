"""A figure over several seeds."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a figure over seeds; no deviation for one of them."""

    mean: float
    deviation: float | None = None

    def text(self, signed: bool = False, digits: int = 1) -> str:
        """Return it for people.

        >>> Spread(93.456, 0.51).text(), Spread(-0.04).text(signed=True)
        ('93.5 ± 0.5', '+0.0')
        """
        # Adding 0 makes a rounded -0 a 0.
        mean = round(self.mean, digits) + 0.0
        shown = f"{mean:{'+' if signed else ''}.{digits}f}".replace("-", "−")
        return shown if self.deviation is None else f"{shown} ± {self.deviation:.{digits}f}"


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and deviation, None if a value is not there.

    >>> spread([1.0, 3.0, 5.0])
    Spread(mean=3.0, deviation=2.0)
    >>> spread([1.0, None]), spread([])
    (None, None)
    """
    found = list(values)
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)
