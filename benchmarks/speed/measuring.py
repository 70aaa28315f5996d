"""Timing of repetitions, and the tables of the results, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table as RichTable


def best_seconds(
    calls: Sequence[Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """Return the shortest time of each call; the calls take turns, after a repetition that does not count.

    CPU time by default: with one thread and no waiting it is the time of an idle machine, and other
    processes disturb it little.
    """
    best = [float("inf")] * len(calls)
    for call in calls:
        call()
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    return best


@dataclass
class Table:
    """Rows of named values."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """Add a row; all rows have the same columns."""
        self.rows.append(row)

    def printed(self) -> RichTable:
        """Return the table for the terminal."""
        table = RichTable(title=self.title, title_justify="left")
        for name, value in (self.rows[0] if self.rows else {}).items():
            table.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
        for row in self.rows:
            table.add_row(*(_text(value) for value in row.values()))
        return table


def _text(value: Any) -> str:
    """Write a number with three significant digits; nothing for None."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 10 else f"{value:.1f}"
    return "" if value is None else str(value)
