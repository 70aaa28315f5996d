"""The formats of a leaderboard: a new format is a function and a line in FORMATS.

Formats that need only the text tables are written here; the others are in `terminal` and `export`, and
are imported on first use, because the command line reads FORMATS for its help.
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
    from flnl_bench.leaderboards.pandas_api import Leaderboard
    from flnl_bench.leaderboards.render import TextCell, TextRow, TextTable


@dataclass(frozen=True)
class Format:
    """A way to write a leaderboard down."""

    name: str
    ending: str  # of the files that have it
    help: str
    write: Callable[[Leaderboard], str]


def choose_format(name: str | None, file: Path | None) -> Format:
    """Return the format with this name, else the format of the file's ending."""
    if name is None:
        if file is None or not file.suffix:
            return FORMATS["table"]
        endings = {known.ending: known for known in FORMATS.values()}
        if file.suffix not in endings:
            raise BadInput(f"{file} must end in one of {', '.join(endings)}, unless --format is given")
        return endings[file.suffix]
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return FORMATS[name]


# -- text and data -----------------------------------------------------------------------------------
def write_table(board: Leaderboard) -> str:
    """Write the tables as a wide terminal shows them, without colours."""
    from flnl_bench.leaderboards.terminal import tables_as_text

    return tables_as_text(board.text_tables)


def write_csv(board: Leaderboard) -> str:
    """Write one line per cell, with all digits."""
    from flnl_bench.leaderboards.export import as_csv

    return as_csv(board)


def write_json(board: Leaderboard) -> str:
    """Write one document with everything."""
    from flnl_bench.leaderboards.export import as_json

    return as_json(board)


# -- Markdown ----------------------------------------------------------------------------------------
_MARKDOWN_MARKS = {"best": "**{}**", "second": "<u>{}</u>"}


def write_markdown(board: Leaderboard) -> str:
    """Write all tables, each with a heading."""
    return "\n".join(_markdown_table(table) for table in board.text_tables)


def _markdown_table(table: TextTable) -> str:
    parts = [f"### {markdown(table.title)}"]
    if table.alarm:
        parts.append(f"<!-- warning: {markdown(table.alarm).replace('--', '- -')} -->")
    parts += [markdown(text) for text in table.about]
    if table.rows:
        rows = [
            ["method", *map(markdown, table.columns)],
            ["---", *("---:" for _ in table.columns)],
            *map(_markdown_row, table.rows),
        ]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    parts += [markdown(note) for note in (table.legend, *table.notes) if note]
    return "\n\n".join(parts) + "\n"


def _markdown_row(row: TextRow) -> list[str]:
    label = markdown(row.shown)
    return [label if row.ours else f"*{label}*", *map(_markdown_cell, row.cells)]


def _markdown_cell(cell: TextCell) -> str:
    text = markdown(f"{cell.number} ± {cell.spread}" if cell.spread else cell.number)
    text = _MARKDOWN_MARKS.get(cell.mark, "{}").format(text)
    return " ".join([text, *cell.flags])


# -- LaTeX (booktabs), to be put into a paper with \input --------------------------------------------
_WIDE = 4  # a table with at least this many columns gets the full width of a page
_SMALL = "\\small\\setlength{\\tabcolsep}{4pt}"
# Shrinks only a table that is too wide.
_SHRINK = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"
_SIGN = re.compile(r"(?<![\w-])[+-](?=\d)")
_LATEX_FLAGS = {"†": "\\dagger ", "✗": "\\times ", "−": "-"}
_LATEX_MARKS = {"best": "\\textbf{{{}}}", "second": "\\underline{{{}}}"}


def write_latex(board: Leaderboard) -> str:
    """Write all tables, each a floating one."""
    head = "% In the preamble: \\usepackage{booktabs,graphicx}\n"
    tables = [table for table in board.text_tables if table.rows]
    labels = [table.label or _label(table.title) for table in tables]
    for place, label in reversed(list(enumerate(labels))):
        labels[place] += f"-{earlier + 1}" if (earlier := labels[:place].count(label)) else ""
    return head + "\n".join(map(_latex_table, tables, labels))


def _label(title: str) -> str:
    """Return a short label of a table: its title without changed options."""
    return f"tab:{re.sub('[^a-z0-9]+', '-', re.sub(' with [^·]*', '', title.lower())).strip('-')}"


def _latex_table(table: TextTable, label: str) -> str:
    kind = "table*" if len(table.columns) >= _WIDE else "table"
    caption = table.caption or " ".join([*table.about, f"Runs: {table.title.replace(' · ', ', ')}."])
    body = [_latex_row(row) for row in table.rows]
    last = next((place for place, row in enumerate(table.rows) if row.kind == "detectable"), len(body))
    body[last:last] = ["\\midrule"] if last < len(body) else []
    alarm = [f"% Warning: {latex(table.alarm)}"] if table.alarm else []
    tabular = [
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(["Method", *map(latex, table.columns)]) + " \\\\",
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}",
    ]
    words = re.sub("`([^`]*)`", r"\\texttt{\1}", latex(" ".join([table.legend, *table.notes]).strip()))
    notes = [f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {words}}}"] if words else []
    lines = [
        *alarm,
        f"\\begin{{{kind}}}",
        "\\centering",
        f"\\caption{{{latex(caption)}}}\\label{{{label}}}\\smallskip",
        _SMALL,
        _SHRINK,
        *tabular,
        "}",
        *notes,
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(row: TextRow) -> str:
    label = latex(row.shown.removesuffix(row.label) + (row.title or row.label))
    label = label if row.ours else f"\\quad\\textit{{{label}}}"
    return " & ".join([label, *map(_latex_cell, row.cells)]) + " \\\\"


def _latex_cell(cell: TextCell) -> str:
    text = _SIGN.sub(r"$\g<0>$", latex(cell.number))
    if cell.spread:
        text += f"{{\\scriptsize\\,$\\pm$\\,{latex(cell.spread)}}}"
    text = _LATEX_MARKS.get(cell.mark, "{}").format(text)
    flags = "\\,".join(_LATEX_FLAGS.get(flag[0], flag[0]) + flag[1:] for flag in cell.flags)
    return text + (f"$^{{{flags}}}$" if flags else "")


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
    """Write the page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>flnl-bench leaderboard</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>flnl-bench leaderboard</h1>\n{_html_tables(board)}\n</body>\n</html>\n"
    )


def html_fragment(board: Leaderboard) -> str:
    """Write the tables and remarks for a page that has its own style, as a notebook has."""
    remarks = "".join(f"<p>{html(text)}</p>\n" for text in board.remarks)
    return f"{_ALARM_ALONE}\n{remarks}{_html_tables(board)}\n"


def _html_tables(board: Leaderboard) -> str:
    return "\n".join(_html_table(table) for table in board.text_tables)


def _html_table(table: TextTable) -> str:
    parts = [f"<h2>{html(table.title)}</h2>"]
    if table.alarm:
        parts.append(f'<p class="alarm">⚠ {html(table.alarm)}</p>')
    parts += [f"<p>{html(text)}</p>" for text in table.about]
    if table.rows:
        head = "".join(f'<th scope="col">{html(name)}</th>' for name in ("method", *table.columns))
        body = "\n".join(_html_row(row) for row in table.rows)
        content = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
        parts.append(f'<div class="scroll">{content}</div>')
    parts += [f"<p>{html(text)}</p>" for text in (table.legend, *table.notes) if text]
    return f"<section>\n{chr(10).join(parts)}\n</section>"


def _html_row(row: TextRow) -> str:
    cells = "".join(_html_cell(cell) for cell in row.cells)
    return f'<tr class="{row.kind}"><th scope="row">{html(row.shown)}</th>{cells}</tr>'


def _html_cell(cell: TextCell) -> str:
    text = html(cell.number) + (f" <small>± {html(cell.spread)}</small>" if cell.spread else "")
    text = _HTML_MARKS.get(cell.mark, "{}").format(text)
    text += f"<sup>{' '.join(cell.flags)}</sup>" if cell.flags else ""
    hover = f' title="{html(cell.detail)}"' if cell.detail else ""
    return f"<td{hover}>{text}</td>"


FORMATS = {
    known.name: known
    for known in (
        Format("table", ".txt", "for the terminal", write_table),
        Format("md", ".md", "Markdown", write_markdown),
        Format("latex", ".tex", "booktabs tables for a paper", write_latex),
        Format("csv", ".csv", "one line per cell", write_csv),
        Format("html", ".html", "one page", write_html),
        Format("json", ".json", "everything", write_json),
    )
}
