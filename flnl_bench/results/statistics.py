"""Statistics of repeated runs; pure functions of numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def mean_std(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation (ddof 1); None if a value is unknown or they are too few."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    if not numbers or len(numbers) < len(known):
        return None, None
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None
