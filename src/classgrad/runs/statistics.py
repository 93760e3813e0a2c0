"""Mean and standard deviation over seeds."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation of a figure over seeds; no deviation for a single seed."""

    mean: float
    std: float | None = None

    def text(self, signed: bool = False, digits: int = 1) -> str:
        """Return it as text.

        >>> MeanStd(93.456, 0.51).text(), MeanStd(-0.04).text(signed=True)
        ('93.5 ± 0.5', '+0.0')
        """
        # Adding 0 turns a rounded -0 into 0.
        mean = round(self.mean, digits) + 0.0
        shown = f"{mean:{'+' if signed else ''}.{digits}f}".replace("-", "−")
        return shown if self.std is None else f"{shown} ± {self.std:.{digits}f}"


def mean_std(values: Iterable[float | None]) -> MeanStd | None:
    """Return mean and standard deviation, or None if a value is missing.

    >>> mean_std([1.0, 3.0, 5.0])
    MeanStd(mean=3.0, std=2.0)
    >>> mean_std([1.0, None]), mean_std([])
    (None, None)
    """
    values = list(values)
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return MeanStd(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)
