"""Ranges of hyper-parameters: declared with the type, checked whenever a method is made."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from flnl_bench.errors import require


@dataclass(frozen=True)
class Range:
    """The numbers from low to high, as in `steps: Annotated[int, Range(1)] = 3`; None is always allowed."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False  # `low` itself is excluded

    def __str__(self) -> str:
        begin = f"{'above' if self.above else 'from'} {self.low:g}"
        if self.high == math.inf:
            return begin
        return f"{begin} {'and at most' if self.above else 'to'} {self.high:g}"

    def check(self, name: str, value: float | None) -> None:
        """Refuse a value outside the range, NaN and infinity."""
        if value is not None:
            above_low = self.low < value if self.above else self.low <= value
            require(above_low and value <= self.high and value < math.inf, name, value, f"a number {self}")


# The types of most hyper-parameters.
Share = Annotated[float, Range(0, 1)]
NotNegative = Annotated[float, Range()]
Positive = Annotated[float, Range(above=True)]


def ranges_of(cls: type) -> Mapping[str, Range]:
    """Return the declared range of each hyper-parameter that has one."""
    return _ranges(cls)


@functools.cache  # a suite makes thousands of methods
def _ranges(cls: Any) -> Mapping[str, Range]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # the registration of the method reports wrong annotations
        return {}
    return {name: declared for name, hint in hints.items() if (declared := _range(hint))}


def _range(hint: Any) -> Range | None:
    """Return the range in `Annotated[float, Range(0, 1)]`, with or without `| None`."""
    extras = [extra for part in (hint, *typing.get_args(hint)) for extra in getattr(part, "__metadata__", ())]
    return next((extra for extra in extras if isinstance(extra, Range)), None)


def check_ranges(owner: object) -> None:
    """Refuse an object with a value outside its declared range."""
    for name, allowed in ranges_of(type(owner)).items():
        allowed.check(name, getattr(owner, name))


def bounded(
    owner: object, *names: str, low: float = 0.0, high: float = math.inf, above: bool = False
) -> None:
    """Refuse attributes that are not numbers from low to high, or above low; None is allowed."""
    for name in names:
        Range(low, high, above).check(name, getattr(owner, name))
