"""The errors that a user or a method's author can cause; the command line prints them as one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path


class BadInput(ValueError):
    """Something the user asked for cannot be done (exit code 2)."""


class MissingData(RuntimeError):
    """A data set is not on this machine and could not be fetched (exit code 3)."""


class BrokenContract(TypeError):
    """A hook of a method gave what it must not (exit code 1)."""


class MethodFailed(RuntimeError):
    """A mistake in a method; names the file and the line (exit code 1)."""


def expect(holds: bool, method: str, rule: str, got: object) -> None:
    """Raise an error that names a method, the rule that it broke and how, unless the condition holds."""
    if not holds:
        if got is not None and not isinstance(got, str):
            got = list(got.shape) if hasattr(got, "shape") else type(got).__name__
        raise BrokenContract(f"{method}: {rule}, not {got}")


def place_in(traceback: str, home: str) -> str:
    """The innermost frame of a traceback that is in the file `home`, or the innermost at all."""
    frames = re.findall(r'File "([^<].*)", line (\d+), in (\S+)', traceback)
    file, line, function = ([frame for frame in frames if frame[0] == home] or frames)[-1]
    return f"{Path(file).name}:{line} in {function}"


def one_line(error: BaseException, limit: int = 160) -> str:
    """The kind of an error and the first line of what it says, shortened."""
    lines = str(error).strip().splitlines()
    text = ": ".join([type(error).__name__, *lines[:1]])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def unknown(what: str, name: str, allowed: Iterable[str], where: str = "") -> BadInput:
    """An error that names the unknown thing, its nearest match and what is allowed."""
    allowed = sorted(allowed)
    place = f" in {where}" if where else ""
    return BadInput(f"unknown {what} {name!r}{place}{nearest(name, allowed)} (allowed: {', '.join(allowed)})")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A question for the name that is most like this one; nothing if none is. FedGR is like fedgr."""

    def bare(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    names = {bare(each): each for each in allowed}
    near = difflib.get_close_matches(bare(name), names, n=1, cutoff=0.5)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise an error that names a value and what is allowed, unless the condition holds."""
    if not condition:
        raise BadInput(f"{name} is {value}, but must be {allowed}")
