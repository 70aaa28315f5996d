"""Sheets for a terminal: rows of one line where the width allows it, else of two, else in several blocks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from flnl_bench.leaderboards.sheet import OURS, Entry, Sheet
from flnl_bench.leaderboards.table import BEST, SECOND

GAP = 2
BROKEN = "\n±"
JOINS = (" ± ", "±", BROKEN)  # between a number and its deviation: roomy, tight, below each other
_STYLES = {BEST: "bold", SECOND: "underline"}


def show(console: Console, sheets: Sequence[Sheet]) -> None:
    """Print all sheets."""
    for number, sheet in enumerate(sheets):
        if number:
            console.print()
        console.print(_lay(sheet, console.width, marked=console.is_terminal))


def _lay(sheet: Sheet, width: int, marked: bool) -> Group:
    parts: list[Text | Table] = [Text(sheet.title, "bold")]
    if sheet.alarm:
        parts.append(Text(f"⚠ {sheet.alarm}", "bold red"))
    parts += [Text(line, "dim") for line in sheet.about]
    if sheet.lines:
        everything = range(len(sheet.columns))
        join = next((join for join in JOINS if _width(sheet, everything, join) <= width), BROKEN)
        parts += [_table(sheet, block, join) for block in _blocks(sheet, width, join)]
    notes = [sheet.legend, *sheet.notes] if marked and sheet.legend else sheet.notes
    parts += [Text(note, "dim") for note in notes]
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
    labels = max(len(_label(line.label, line.kind)) for line in sheet.lines)
    columns = [
        max(
            _longest(_header(sheet.columns[place], join)),
            *(_longest(_text(line.entries[place], join).plain) for line in sheet.lines),
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
    for line in sheet.lines:
        entries = [_text(line.entries[place], join) for place in block]
        made.add_row(Text(_label(line.label, line.kind)), *entries, style="" if line.kind == OURS else "dim")
    return made


def _label(label: str, kind: str) -> str:
    return label if kind == OURS else f"  {label}"


def _header(name: str, join: str) -> str:
    """A setting's name over two lines where space is short: the kind, then the share."""
    return "\n".join(name.rsplit("-", 1)) if join == BROKEN else name


def _text(entry: Entry, join: str) -> Text:
    text = Text(entry.number + (join + entry.spread if entry.spread else ""), _STYLES.get(entry.mark, ""))
    return text.append(f"†{entry.fewer}", "not bold not underline") if entry.fewer else text
