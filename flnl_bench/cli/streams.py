"""Standard streams that may be lost: a full disk, a closed pipe or a closed terminal ends no run."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

NARROWEST = 20  # columns: below that tables and help texts cannot be set


class Lossy:
    """A stream that remembers its first error, and after that swallows what is written."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Write, or give up."""
        with self._caught():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or give up."""
        with self._caught():
            self.stream.flush()

    @contextlib.contextmanager
    def _caught(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self.error = self.error or error
            with contextlib.suppress(OSError, ValueError):
                # What is still in its buffer must go somewhere, or Python would complain at its end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def standard_streams() -> Iterator[Lossy]:
    """Put streams that may be lost in the place of stdout and stderr; gives that of stdout."""
    for number in (0, 1, 2):  # a closed one's number would be given to the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    width = shutil.get_terminal_size().columns
    if min(width, int(told) if (told := os.environ.get("COLUMNS", "")).isdecimal() else width) < NARROWEST:
        os.environ["COLUMNS"] = str(max(NARROWEST, width))
    out, errors = _lossy(sys.stdout), _lossy(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):  # type: ignore[type-var]
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
