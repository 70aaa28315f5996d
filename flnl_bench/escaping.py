"""Escape text of foreign origin: one function per output format.

Names, labels and messages come from run.json, suite files, archives and plugins. Characters that cannot be
printed are shown as escapes, as in \\x1b; the markup of a format is escaped.
"""

from __future__ import annotations

import html as _html
import re
from typing import TypeVar

_T = TypeVar("_T")


def terminal(text: str) -> str:
    """Escape text for one line of a terminal: control characters and line breaks are shown, not sent."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(sign: str) -> str:
    if sign.isprintable():
        return sign
    return " " if sign.isspace() else sign.encode("unicode_escape").decode()


def lines(text: str) -> str:
    """Escape text for a terminal; line breaks are kept."""
    return "\n".join(map(terminal, text.split("\n")))


def json(text: str) -> str:
    """Escape control characters in a JSON document; its values do not change."""
    return re.sub(r"[^\x00-\x7e]", lambda match: _json_sign(match[0]), text)


def _json_sign(sign: str) -> str:
    if sign.isprintable():
        return sign
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def csv(value: _T) -> _T | str:
    """Escape a cell; a text that a spreadsheet would read as a formula gets an apostrophe."""
    if not isinstance(value, str):
        return value
    safe = terminal(value)
    return f"'{safe}" if safe.lstrip()[:1] in ("=", "+", "-", "@") else safe


def markdown(text: str) -> str:
    """Escape markup and HTML in a paragraph or a cell."""
    return re.sub(r"([\\`*_|<>\[\]~#&])", r"\\\1", terminal(text))


def html(text: str) -> str:
    """Escape the content of an element or of a quoted attribute."""
    return _html.escape(terminal(text))


_LATEX = {
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
    "✗": r"$\times$",
    "▸": r"$\triangleright$",
}


def latex(text: str) -> str:
    """Escape LaTeX's characters; characters that pdflatex cannot print become question marks."""
    return "".join(_LATEX.get(sign, sign if sign.isascii() else "?") for sign in terminal(text))
