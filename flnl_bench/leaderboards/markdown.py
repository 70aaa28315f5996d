"""Sheets as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flnl_bench.leaderboards.sheet import OURS, Entry, Line, Sheet
from flnl_bench.leaderboards.table import BEST, SECOND


def render(sheets: Sequence[Sheet]) -> str:
    """All sheets, each with a heading."""
    return "\n".join(_sheet(sheet) for sheet in sheets)


def _sheet(sheet: Sheet) -> str:
    parts = [f"### {_safe(sheet.title)}"]
    if sheet.alarm:
        parts.append(f"> **⚠ {_safe(sheet.alarm)}**")
    parts += [_safe(line) for line in sheet.about]
    if sheet.lines:
        rows = [
            ["method", *sheet.columns],
            ["---", *("---:" for _ in sheet.columns)],
            *map(_line, sheet.lines),
        ]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    parts += [_safe(note) for note in (sheet.legend, *sheet.notes) if note]
    return "\n\n".join(parts) + "\n"


def _line(line: Line) -> list[str]:
    label = _safe(line.label) if line.kind == OURS else f"*{_safe(line.label)}*"
    return [label, *map(_entry, line.entries)]


def _entry(entry: Entry) -> str:
    text = _safe(f"{entry.number} ± {entry.spread}" if entry.spread else entry.number)
    if entry.mark == BEST:
        text = f"**{text}**"
    elif entry.mark == SECOND:
        text = f"<u>{text}</u>"
    return text + (f" †{entry.fewer}" if entry.fewer else "")


def _safe(text: str) -> str:
    """What users named is no markup."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)
