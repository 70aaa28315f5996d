"""Sheets for a terminal: rows of one line where the width allows it, else of two, else in several blocks."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from flnl_bench.escaping import terminal
from flnl_bench.leaderboards.render import Entry, Sheet, SheetRow
from flnl_bench.leaderboards.table import BEST, SECOND

GAP = 2
WIDE = 500  # columns of a file: no row is ever broken
BROKEN = "\n±"
JOINS = (" ± ", "±", BROKEN)  # between a number and its deviation: roomy, tight, below each other
_STYLES = {BEST: "bold", SECOND: "underline"}


def width_here() -> int:
    """The width of the terminal, or the one that COLUMNS tells; without both there is no need to break."""
    console = Console()
    return console.width if console.is_terminal or "COLUMNS" in os.environ else WIDE


def as_text(sheets: Sequence[Sheet], width: int = WIDE) -> str:
    """All sheets without colours, and without blanks at the ends of lines."""
    out = io.StringIO()
    plain = Console(file=out, width=width, force_terminal=False, highlight=False, markup=False, emoji=False)
    show(plain, sheets)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def show(console: Console, sheets: Sequence[Sheet]) -> None:
    """Print all sheets at the width of the console."""
    for number, sheet in enumerate(sheets):
        if number:
            console.print()
        console.print(_lay(sheet, console.width, marked=console.is_terminal))


def _lay(sheet: Sheet, width: int, marked: bool) -> Group:
    parts: list[Text | Table] = [Text(terminal(sheet.title), "bold")]
    if sheet.alarm:
        parts.append(Text(terminal(f"⚠ {sheet.alarm}"), "bold red"))
    parts += [Text(terminal(line), "dim") for line in sheet.about]
    if sheet.rows:
        everything = range(len(sheet.columns))
        join = next((join for join in JOINS if _width(sheet, everything, join) <= width), BROKEN)
        parts += [_table(sheet, block, join) for block in _blocks(sheet, width, join)]
    notes = [sheet.legend, *sheet.notes] if marked and sheet.legend else sheet.notes
    parts += [Text(terminal(note), "dim") for note in notes]
    return Group(*parts)


def _blocks(sheet: Sheet, width: int, join: str) -> list[range]:
    """Columns that fit beside each other; each block takes as many as it can."""
    blocks, start = [], 0
    for stop in range(1, len(sheet.columns) + 1):
        if stop - start > 1 and _width(sheet, range(start, stop), join) > width:
            blocks.append(range(start, stop - 1))
            start = stop - 1
    return [*blocks, range(start, len(sheet.columns))]


def _width(sheet: Sheet, block: range, join: str) -> int:
    labels = max(len(_label(row)) for row in sheet.rows)
    columns = [
        max(
            _longest(_header(sheet.columns[place], join)),
            *(_longest(_text(row.entries[place], join).plain) for row in sheet.rows),
        )
        for place in block
    ]
    return max(labels, len("method")) + sum(columns) + GAP * len(columns)


def _longest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _table(sheet: Sheet, block: range, join: str) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    made.add_column("method", overflow="fold")
    for place in block:
        made.add_column(_header(sheet.columns[place], join), justify="right", no_wrap=True)
    for row in sheet.rows:
        entries = [_text(row.entries[place], join) for place in block]
        made.add_row(Text(_label(row)), *entries, style="" if row.ours else "dim")
    return made


def _label(row: SheetRow) -> str:
    return terminal(row.label if row.ours else f"  {row.label}")


def _header(name: str, join: str) -> str:
    """A setting's name over two lines where space is short: the kind, then the share."""
    name = terminal(name)
    return "\n".join(name.rsplit("-", 1)) if join == BROKEN else name


def _text(entry: Entry, join: str) -> Text:
    text = Text(entry.number + (join + entry.spread if entry.spread else ""), _STYLES.get(entry.mark, ""))
    return text.append(f"†{entry.fewer}", "not bold not underline") if entry.fewer else text
