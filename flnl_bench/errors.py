"""The errors that a user or a method's author can cause; the command line prints them as one line."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path


class BadInput(ValueError):
    """An option, file or value that cannot be used (exit code 2)."""


class MissingData(RuntimeError):
    """A data set is not on this machine and could not be fetched (exit code 3)."""


class BrokenContract(TypeError):
    """A hook of a method returned a value of a wrong form (exit code 1)."""


class MethodFailed(RuntimeError):
    """A mistake in a method; names the file and the line (exit code 1)."""


def expect(holds: bool, method: str, rule: str, got: object) -> None:
    """Raise an error that names a method, the rule that it broke and how, unless the condition holds."""
    if not holds:
        if got is not None and not isinstance(got, str):
            got = list(got.shape) if hasattr(got, "shape") else type(got).__name__
        raise BrokenContract(f"{method}: {rule}, not {got}")


def place_in(traceback: str, home: str) -> str:
    """Return the innermost frame of a traceback in the file `home`, else the innermost of all."""
    frames = re.findall(r'File "([^<].*)", line (\d+), in (\S+)', traceback)
    file, line, function = ([frame for frame in frames if frame[0] == home] or frames)[-1]
    return f"{Path(file).name}:{line} in {function}"


def one_line(error: BaseException, limit: int = 160) -> str:
    """Return the class of an error and the first line of its message, shortened."""
    lines = str(error).strip().splitlines()
    text = ": ".join([type(error).__name__, *lines[:1]])
    return text if len(text) <= limit else text[: limit - 1] + "…"


# Errors of the disk or the machine: no method can be blamed for them.
_OF_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOLCK),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE),
}


def of_machine(error: BaseException) -> bool:
    """Return whether an error says that the disk is full, a file may not be written, or no lock is left."""
    return isinstance(error, OSError) and error.errno in _OF_MACHINE


_LISTED = {"data set", "method", "model", "partition", "preset", "setting", "suite", "tracker"}  # by `list`


def unknown(kind: str, name: str, allowed: Iterable[str], where: str = "") -> BadInput:
    """Make an error that names the unknown name, its nearest match and the allowed names.

    Instead of many names that `flnl-bench list` shows, it names that command.
    """
    allowed = sorted(allowed)
    names = f"allowed: {', '.join(allowed)}"
    if kind in _LISTED and len(names) > 160:
        names = f"`flnl-bench list {kind.replace(' ', '')}s` shows all {len(allowed)}"
    place = f" in {where}" if where else ""
    return BadInput(f"unknown {kind} {name!r}{place}{nearest(name, allowed)} ({names})")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return a question for the most similar name, if there is one; case and dashes do not count."""

    def bare(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    names = {bare(candidate): candidate for candidate in allowed}
    near = difflib.get_close_matches(bare(name), names, n=1, cutoff=0.5)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise an error that names a value and the allowed values, unless the condition holds."""
    if not condition:
        raise BadInput(f"{name} is {value}, but must be {allowed}")
