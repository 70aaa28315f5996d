"""Sheets as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flnl_bench.leaderboards.sheet import Entry, Line, Sheet
from flnl_bench.leaderboards.table import BEST, SECOND

STYLE = """
:root { color-scheme: light dark; --rule: #8888; --dim: #777; --loud: #c22; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 76rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .3rem; }
p { margin: .2rem 0; color: var(--dim); font-size: .88rem; }
p.alarm { color: #fff; background: var(--loud); padding: .4rem .7rem; font-weight: 600; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .55rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; }
thead th, tbody tr:last-child > * { border-bottom: 1px solid var(--rule); }
thead th { border-top: 1px solid var(--rule); font-weight: 600; }
tbody th { font-weight: 400; }
tr.paper, tr.difference { color: var(--dim); font-size: .9em; }
tr.paper th, tr.difference th { padding-left: 1.8rem; }
sup { line-height: 0; }
small { color: var(--dim); }
""".strip()


def render(sheets: Sequence[Sheet]) -> str:
    """The page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>flnl-bench leaderboard</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>flnl-bench leaderboard</h1>\n{fragments(sheets)}\n</body>\n</html>\n"
    )


def fragments(sheets: Sequence[Sheet]) -> str:
    """The sheets alone, for pages that have more to say."""
    return "\n".join(_sheet(sheet) for sheet in sheets)


def _sheet(sheet: Sheet) -> str:
    parts = [f"<h2>{escape(sheet.title)}</h2>"]
    if sheet.alarm:
        parts.append(f'<p class="alarm">⚠ {escape(sheet.alarm)}</p>')
    parts += [f"<p>{escape(text)}</p>" for text in sheet.about]
    if sheet.lines:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("method", *sheet.columns))
        body = "\n".join(_line(line) for line in sheet.lines)
        table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
        parts.append(f'<div class="scroll">{table}</div>')
    parts += [f"<p>{escape(text)}</p>" for text in (sheet.legend, *sheet.notes) if text]
    return f"<section>\n{chr(10).join(parts)}\n</section>"


def _line(line: Line) -> str:
    cells = "".join(_entry(entry) for entry in line.entries)
    return f'<tr class="{line.kind}"><th scope="row">{escape(line.label)}</th>{cells}</tr>'


def _entry(entry: Entry) -> str:
    text = escape(entry.number) + (f" <small>± {escape(entry.spread)}</small>" if entry.spread else "")
    if entry.mark == BEST:
        text = f"<b>{text}</b>"
    elif entry.mark == SECOND:
        text = f"<u>{text}</u>"
    if entry.fewer:
        text += f"<sup>†{entry.fewer}</sup>"
    hover = f' title="{escape(entry.detail)}"' if entry.detail else ""
    return f"<td{hover}>{text}</td>"
