"""Text of foreign origin, made harmless: one function per output format.

Names, labels and messages come from run.json, suite files, archives and plugins. Characters that cannot be
printed are shown as escapes, as in \\x1b; the markup of a format is escaped.
"""

from __future__ import annotations

import html as _html
import re
from typing import TypeVar

_T = TypeVar("_T")


def terminal(text: str) -> str:
    """One line without control characters: nothing can move the cursor, set a title or fake a line."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(sign: str) -> str:
    if sign.isprintable():
        return sign
    return " " if sign.isspace() else sign.encode("unicode_escape").decode()


def lines(text: str) -> str:
    """The same for text whose line breaks are our own."""
    return "\n".join(map(terminal, text.split("\n")))


def json(text: str) -> str:
    """A JSON document whose strings show nothing that a terminal would act on; it reads as before."""
    return re.sub(r"[^\x00-\x7e]", lambda match: _json_sign(match[0]), text)


def _json_sign(sign: str) -> str:
    if sign.isprintable():
        return sign
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def csv(value: _T) -> _T | str:
    """A cell; a text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    safe = terminal(value)
    return f"'{safe}" if safe.lstrip()[:1] in ("=", "+", "-", "@") else safe


def markdown(text: str) -> str:
    """Words in a paragraph or a table's cell: neither markup nor HTML."""
    return re.sub(r"([\\`*_|<>\[\]~#&])", r"\\\1", terminal(text))


def html(text: str) -> str:
    """Content of an element, or of an attribute in quotes."""
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
}


def latex(text: str) -> str:
    """Text without LaTeX's own signs; what pdflatex cannot set becomes a question mark."""
    return "".join(_LATEX.get(sign, sign if sign.isascii() else "?") for sign in terminal(text))
