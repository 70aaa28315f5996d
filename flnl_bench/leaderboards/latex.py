r"""Sheets as LaTeX tables (booktabs), to be put into a paper with \input."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flnl_bench.leaderboards.sheet import OURS, Entry, Line, Sheet
from flnl_bench.leaderboards.table import BEST, SECOND

WIDE = 4  # so many columns do not fit one column of a paper: such a table gets the width of the page
SMALL = "\\small\\setlength{\\tabcolsep}{4pt}"
SHRINK = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"  # only what is too wide
_SIGN = re.compile(r"(?<!\w)[+-](?=\d)")
_SAFE = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "†": r"$\dagger$",
}


def render(sheets: Sequence[Sheet]) -> str:
    """All sheets, each a floating table."""
    head = "% In the preamble: \\usepackage{booktabs,graphicx}\n"
    return head + "\n".join(_sheet(sheet) for sheet in sheets if sheet.lines)


def _sheet(sheet: Sheet) -> str:
    kind = "table*" if len(sheet.columns) >= WIDE else "table"
    caption = " ".join([f"{sheet.title}.", *sheet.about])
    alarm = [f"\\textbf{{Warning: {safe(sheet.alarm)}.}}\\par\\smallskip"] if sheet.alarm else []
    tabular = [
        f"\\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}",
        "\\toprule",
        " & ".join(["Method", *map(safe, sheet.columns)]) + " \\\\",
        "\\midrule",
        *(_line(line) for line in sheet.lines),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    notes = "\\par\\smallskip\\footnotesize " + safe(" ".join([sheet.legend, *sheet.notes]).strip())
    lines = [
        f"\\begin{{{kind}}}",
        "\\centering",
        f"\\caption{{{safe(caption)}}}\\smallskip",
        *alarm,
        SMALL,
        SHRINK,
        *tabular,
        "}",
        notes,
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def _line(line: Line) -> str:
    label = safe(line.label) if line.kind == OURS else f"\\quad\\textit{{{safe(line.label)}}}"
    return " & ".join([label, *map(_entry, line.entries)]) + " \\\\"


def _entry(entry: Entry) -> str:
    text = _SIGN.sub(r"$\g<0>$", safe(entry.number))
    if entry.spread:
        text += f"{{\\scriptsize\\,$\\pm$\\,{safe(entry.spread)}}}"
    if entry.mark == BEST:
        text = f"\\textbf{{{text}}}"
    elif entry.mark == SECOND:
        text = f"\\underline{{{text}}}"
    return text + (f"$^{{\\dagger {entry.fewer}}}$" if entry.fewer else "")


def safe(text: str) -> str:
    """Text without LaTeX's own signs; what pdflatex cannot set becomes a question mark."""
    return "".join(_SAFE.get(sign, sign if sign.isascii() else "?") for sign in text)
