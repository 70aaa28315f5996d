"""Standard streams that may be lost: a full disk, a closed pipe or a closed terminal ends no run."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from flnl_bench.processes import Lossy

NARROWEST, WIDEST = 20, 1000  # columns: beyond that tables and help texts cannot be set


@contextlib.contextmanager
def standard_streams() -> Iterator[Lossy]:
    """Put streams that may be lost in the place of stdout and stderr; gives that of stdout."""
    for number in (0, 1, 2):  # a closed one's number would be given to the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    told, width = os.environ.get("COLUMNS", ""), shutil.get_terminal_size().columns
    widths = (width, int(told) if told.isdecimal() else width)
    if min(widths) < NARROWEST or max(widths) > WIDEST:
        os.environ["COLUMNS"] = str(min(WIDEST, max(NARROWEST, width)))
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
