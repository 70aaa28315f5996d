"""Tables for a terminal: rows of one line where the width allows it, else of two, else in several blocks."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from flnl_bench.escaping import terminal
from flnl_bench.leaderboards.render import TextCell, TextRow, TextTable
from flnl_bench.leaderboards.table import BEST, SECOND

GAP = 2
WIDE = 500  # characters per line of a file: no row is broken
TWO_LINES = "\n±"
JOINS = (" ± ", "±", TWO_LINES)  # between a number and its deviation: wide, narrow, on two lines
_STYLES = {BEST: "bold", SECOND: "underline"}


def width_here() -> int:
    """Return the width of the terminal, or COLUMNS; without both, rows are not broken."""
    console = Console(force_jupyter=False)
    return console.width if console.is_terminal or "COLUMNS" in os.environ else WIDE


def tables_as_text(tables: Sequence[TextTable], width: int = WIDE) -> str:
    """Write all tables without colours, and without blanks at the ends of lines."""
    out = io.StringIO()
    plain = Console(
        file=out,
        width=width,
        force_terminal=False,
        force_jupyter=False,  # in a notebook rich would display the tables instead of writing them
        highlight=False,
        markup=False,
        emoji=False,
    )
    show(plain, tables)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def show(console: Console, tables: Sequence[TextTable]) -> None:
    """Print all tables at the width of the console."""
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(_lay(table, console.width, marked=console.is_terminal))


def _lay(table: TextTable, width: int, marked: bool) -> Group:
    parts: list[Text | Grid] = [Text(terminal(table.title), "bold")]
    if table.alarm:
        parts.append(Text(terminal(f"⚠ {table.alarm}"), "bold red"))
    parts += [Text(terminal(line), "dim") for line in table.about]
    if table.rows:
        everything = range(len(table.columns))
        join = next((join for join in JOINS if _width(table, everything, join) <= width), TWO_LINES)
        parts += [_grid(table, block, join) for block in _blocks(table, width, join)]
    notes = [table.legend, *table.notes] if marked and table.legend else table.notes
    parts += [Text(terminal(note), "dim") for note in notes]
    return Group(*parts)


def _blocks(table: TextTable, width: int, join: str) -> list[range]:
    """Divide the columns into blocks that fit the width; each takes as many columns as it can."""
    blocks, start = [], 0
    for stop in range(1, len(table.columns) + 1):
        if stop - start > 1 and _width(table, range(start, stop), join) > width:
            blocks.append(range(start, stop - 1))
            start = stop - 1
    return [*blocks, range(start, len(table.columns))]


def _width(table: TextTable, block: range, join: str) -> int:
    labels = max(len(_label(row)) for row in table.rows)
    columns = [
        max(
            _longest(_header(table.columns[place], join)),
            *(_longest(_text(row.cells[place], join).plain) for row in table.rows),
        )
        for place in block
    ]
    return max(labels, len("method")) + sum(columns) + GAP * len(columns)


def _longest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _grid(table: TextTable, block: range, join: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    grid.add_column("method", overflow="fold")
    for place in block:
        grid.add_column(_header(table.columns[place], join), justify="right", no_wrap=True)
    for row in table.rows:
        cells = [_text(row.cells[place], join) for place in block]
        grid.add_row(Text(_label(row)), *cells, style="" if row.ours else "dim")
    return grid


def _label(row: TextRow) -> str:
    return terminal(row.shown if row.ours else f"  {row.label}")


def _header(name: str, join: str) -> str:
    """Break the name of a setting into kind and share where space is short."""
    name = terminal(name)
    return "\n".join(name.rsplit("-", 1)) if join == TWO_LINES else name


def _text(cell: TextCell, join: str) -> Text:
    text = Text(cell.number + (join + cell.spread if cell.spread else ""), _STYLES.get(cell.mark, ""))
    return text.append("".join(cell.flags), "not bold not underline")
