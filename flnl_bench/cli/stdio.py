"""Standard streams whose errors stop no run: a full disk, a closed pipe, a closed terminal."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from flnl_bench.processes import Lossy

_NARROWEST, _WIDEST = 20, 1000  # columns: other widths break tables and help texts


@contextlib.contextmanager
def standard_streams() -> Iterator[Lossy]:
    """Replace stdout and stderr by streams that drop output after an error; yield the one of stdout."""
    for number in (0, 1, 2):  # else the next opened file would get a closed stream's number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    columns, width = os.environ.get("COLUMNS", ""), shutil.get_terminal_size().columns
    widths = (width, int(columns) if columns.isdecimal() else width)
    if min(widths) < _NARROWEST or max(widths) > _WIDEST:
        os.environ["COLUMNS"] = str(min(_WIDEST, max(_NARROWEST, width)))
    out, errors = _lossy(sys.stdout), _lossy(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        yield out
    out.flush()
    errors.flush()


def _lossy(stream: Any) -> Lossy:
    if stream is None:  # it was closed when Python started
        closed = Lossy(io.StringIO())
        closed.error = BrokenPipeError()
        return closed
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
    return Lossy(stream)
