"""Curves as text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def squeeze(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: means of equal stretches of the curve."""
    if len(values) <= width:
        return list(values)
    ends = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]


def bars(values: Sequence[float], height: int) -> list[str]:
    """The curve as columns of blocks that stand on zero, the top line first."""
    scale = 8 * height / (max(values) or 1.0)
    filled = [round(scale * value) for value in values]
    return [
        "".join(BLOCKS[min(8, max(0, level - 8 * line))] for level in filled)
        for line in reversed(range(height))
    ]


def plot(values: Sequence[float], width: int, height: int = 6) -> list[str]:
    """A small plot of percentages over rounds, from zero to its highest value."""
    shown = squeeze(values, width - 10)
    stretched = [value for value in shown for _ in range(max(1, min(3, (width - 10) // len(shown))))]
    lines = bars(stretched, height)
    labels = [f"{max(shown):6.1f} %", *[""] * (height - 2), f"{0:6} %"]
    axis = f"1{len(values):>{max(1, len(stretched) - 1)}}" if len(values) > 1 else "1"
    return [f"{label:>8} {line}" for label, line in zip(labels, lines, strict=True)] + [
        f"{'round':>8} {axis}"
    ]
