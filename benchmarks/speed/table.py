"""The tables that the parts give back, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.table import Table as RichTable


@dataclass
class Table:
    """Rows of named values."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """Add a row; all rows have the same columns."""
        self.rows.append(row)

    def printed(self) -> RichTable:
        """For the terminal."""
        table = RichTable(title=self.title, title_justify="left")
        for name, value in (self.rows[0] if self.rows else {}).items():
            table.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
        for row in self.rows:
            table.add_row(*(text(value) for value in row.values()))
        return table


def text(value: Any) -> str:
    """A number with three digits that mean something; nothing for None."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 10 else f"{value:.1f}"
    return "" if value is None else str(value)
