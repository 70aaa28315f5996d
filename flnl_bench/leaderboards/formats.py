"""The formats of a leaderboard, one entry a format: a new one is a function and a line in FORMATS.

What needs nothing but the sheets is written here; the others are in `terminal` and `data`, and loaded when
they are asked for, because the command line reads this table for its help.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.errors import BadInput, unknown
from flnl_bench.escaping import html, latex, markdown

if TYPE_CHECKING:
    from flnl_bench.leaderboards.leaderboard import Leaderboard
    from flnl_bench.leaderboards.render import Entry, Sheet, SheetRow


@dataclass(frozen=True)
class Format:
    """A way to write a leaderboard down."""

    name: str
    ending: str  # of the files that have it
    help: str
    write: Callable[[Leaderboard], str]


def choose_format(name: str | None, file: Path | None) -> Format:
    """The format asked for, else the one that the name of the file tells."""
    if name is None:
        if file is None or not file.suffix:
            return FORMATS["table"]
        endings = {one.ending: one for one in FORMATS.values()}
        if file.suffix not in endings:
            raise BadInput(f"{file} must end in one of {', '.join(endings)}, unless --format is given")
        return endings[file.suffix]
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return FORMATS[name]


# -- text and data -----------------------------------------------------------------------------------
def write_table(board: Leaderboard) -> str:
    """As a wide terminal shows it, without colours."""
    from flnl_bench.leaderboards.terminal import as_text

    return as_text(board.sheets)


def write_csv(board: Leaderboard) -> str:
    """One line a cell, with all digits."""
    from flnl_bench.leaderboards.export import as_csv

    return as_csv(board)


def write_json(board: Leaderboard) -> str:
    """One document with everything."""
    from flnl_bench.leaderboards.export import as_json

    return as_json(board)


# -- Markdown ----------------------------------------------------------------------------------------
_MARKDOWN_MARKS = {"best": "**{}**", "second": "<u>{}</u>"}


def write_markdown(board: Leaderboard) -> str:
    """All sheets, each with a heading."""
    return "\n".join(_markdown_sheet(sheet) for sheet in board.sheets)


def _markdown_sheet(sheet: Sheet) -> str:
    parts = [f"### {markdown(sheet.title)}"]
    if sheet.alarm:
        parts.append(f"> **⚠ {markdown(sheet.alarm)}**")
    parts += [markdown(text) for text in sheet.about]
    if sheet.rows:
        rows = [
            ["method", *sheet.columns],
            ["---", *("---:" for _ in sheet.columns)],
            *map(_markdown_row, sheet.rows),
        ]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    parts += [markdown(note) for note in (sheet.legend, *sheet.notes) if note]
    return "\n\n".join(parts) + "\n"


def _markdown_row(row: SheetRow) -> list[str]:
    label = markdown(row.label)
    return [label if row.ours else f"*{label}*", *map(_markdown_entry, row.entries)]


def _markdown_entry(entry: Entry) -> str:
    text = markdown(f"{entry.number} ± {entry.spread}" if entry.spread else entry.number)
    text = _MARKDOWN_MARKS.get(entry.mark, "{}").format(text)
    return text + (f" †{entry.fewer}" if entry.fewer else "")


# -- LaTeX (booktabs), to be put into a paper with \input --------------------------------------------
_WIDE = 4  # so many columns do not fit one column of a paper: such a table gets the width of the page
_SMALL = "\\small\\setlength{\\tabcolsep}{4pt}"
_SHRINK = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"  # only what is too wide
_SIGN = re.compile(r"(?<!\w)[+-](?=\d)")
_LATEX_MARKS = {"best": "\\textbf{{{}}}", "second": "\\underline{{{}}}"}


def write_latex(board: Leaderboard) -> str:
    """All sheets, each a floating table."""
    head = "% In the preamble: \\usepackage{booktabs,graphicx}\n"
    return head + "\n".join(_latex_sheet(sheet) for sheet in board.sheets if sheet.rows)


def _latex_sheet(sheet: Sheet) -> str:
    kind = "table*" if len(sheet.columns) >= _WIDE else "table"
    caption = " ".join([f"{sheet.title}.", *sheet.about])
    alarm = [f"\\textbf{{Warning: {latex(sheet.alarm)}.}}\\par\\smallskip"] if sheet.alarm else []
    tabular = [
        f"\\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}",
        "\\toprule",
        " & ".join(["Method", *map(latex, sheet.columns)]) + " \\\\",
        "\\midrule",
        *(_latex_row(row) for row in sheet.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    notes = "\\par\\smallskip\\footnotesize " + latex(" ".join([sheet.legend, *sheet.notes]).strip())
    lines = [
        f"\\begin{{{kind}}}",
        "\\centering",
        f"\\caption{{{latex(caption)}}}\\smallskip",
        *alarm,
        _SMALL,
        _SHRINK,
        *tabular,
        "}",
        notes,
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(row: SheetRow) -> str:
    label = latex(row.label)
    label = label if row.ours else f"\\quad\\textit{{{label}}}"
    return " & ".join([label, *map(_latex_entry, row.entries)]) + " \\\\"


def _latex_entry(entry: Entry) -> str:
    text = _SIGN.sub(r"$\g<0>$", latex(entry.number))
    if entry.spread:
        text += f"{{\\scriptsize\\,$\\pm$\\,{latex(entry.spread)}}}"
    text = _LATEX_MARKS.get(entry.mark, "{}").format(text)
    return text + (f"$^{{\\dagger {entry.fewer}}}$" if entry.fewer else "")


# -- HTML: one page that needs nothing else ----------------------------------------------------------
_HTML_MARKS = {"best": "<b>{}</b>", "second": "<u>{}</u>"}
_STYLE = """
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
_ALARM_ALONE = "<style>section p.alarm { color: #fff; background: #c22; padding: .4rem .7rem }</style>"


def write_html(board: Leaderboard) -> str:
    """The page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>flnl-bench leaderboard</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>flnl-bench leaderboard</h1>\n{_html_sheets(board)}\n</body>\n</html>\n"
    )


def html_fragment(board: Leaderboard) -> str:
    """The sheets and what was kept apart, for a page that has its own style, as a notebook has."""
    said = "".join(f"<p>{html(text)}</p>\n" for text in board.remarks)
    return f"{_ALARM_ALONE}\n{said}{_html_sheets(board)}\n"


def _html_sheets(board: Leaderboard) -> str:
    return "\n".join(_html_sheet(sheet) for sheet in board.sheets)


def _html_sheet(sheet: Sheet) -> str:
    parts = [f"<h2>{html(sheet.title)}</h2>"]
    if sheet.alarm:
        parts.append(f'<p class="alarm">⚠ {html(sheet.alarm)}</p>')
    parts += [f"<p>{html(text)}</p>" for text in sheet.about]
    if sheet.rows:
        head = "".join(f'<th scope="col">{html(name)}</th>' for name in ("method", *sheet.columns))
        body = "\n".join(_html_row(row) for row in sheet.rows)
        made = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
        parts.append(f'<div class="scroll">{made}</div>')
    parts += [f"<p>{html(text)}</p>" for text in (sheet.legend, *sheet.notes) if text]
    return f"<section>\n{chr(10).join(parts)}\n</section>"


def _html_row(row: SheetRow) -> str:
    cells = "".join(_html_entry(entry) for entry in row.entries)
    return f'<tr class="{row.kind}"><th scope="row">{html(row.label)}</th>{cells}</tr>'


def _html_entry(entry: Entry) -> str:
    text = html(entry.number) + (f" <small>± {html(entry.spread)}</small>" if entry.spread else "")
    text = _HTML_MARKS.get(entry.mark, "{}").format(text)
    text += f"<sup>†{entry.fewer}</sup>" if entry.fewer else ""
    hover = f' title="{html(entry.detail)}"' if entry.detail else ""
    return f"<td{hover}>{text}</td>"


FORMATS = {
    one.name: one
    for one in (
        Format("table", ".txt", "for the terminal", write_table),
        Format("md", ".md", "Markdown", write_markdown),
        Format("latex", ".tex", "booktabs tables for a paper", write_latex),
        Format("csv", ".csv", "one line a cell", write_csv),
        Format("html", ".html", "one page", write_html),
        Format("json", ".json", "everything", write_json),
    )
}
