"""Options in the names of settings and partitions, such as `step` in pair-0.6,step=-1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flnl_bench.data.own_files import own_name
from flnl_bench.errors import BadInput, MissingData, unknown


@dataclass(frozen=True)
class Option:
    """An option in the name of a setting or partition, such as `step` in pair-0.6,step=-1."""

    name: str
    help: str  # the allowed values and their meaning
    parse: Callable[[str], Any]  # from text; a ValueError says what is allowed
    default: Any = None
    required: bool = False

    @property
    def about(self) -> str:
        """The option with its default, for lists."""
        value = "…" if self.default is None else as_text(self.default)
        return f"{self.name}={value}: {self.help}" + (" (must be given)" if self.required else "")


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`."""

    def parse(text: str) -> float:
        allowed = f"a number of {low:g} or more" if high == math.inf else f"a number from {low:g} to {high:g}"
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or value == math.inf:
            raise ValueError(allowed)
        return value

    return parse


def one_of(*values: Any) -> Callable[[str], Any]:
    """Return a parser of one of several values."""
    texts = {as_text(value): value for value in values}

    def parse(text: str) -> Any:
        if text not in texts:
            raise ValueError(" or ".join(texts))
        return texts[text]

    return parse


def file(text: str) -> str:
    """Return NAME@DIGEST of a file, which is read when labels are drawn."""
    if not text:
        raise ValueError("the path of a file")
    try:
        return own_name(text)
    except MissingData as error:
        raise BadInput(str(error)) from None


def as_text(value: Any) -> str:
    """Return the canonical text of a number, a truth value, a name or several of them."""
    if isinstance(value, tuple):
        return "+".join(map(as_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return np.format_float_positional(value, trim="0") if isinstance(value, float) else str(value)


def parse_options(
    where: str, kind: str, options: Sequence[Option], texts: Sequence[str]
) -> tuple[tuple[str, Any], ...]:
    """Parse KEY=VALUE texts; the values are in the order of the kind's options, without defaults.

    Args:
        where: the whole name, for messages.
        kind: the name of the kind that has the options.
        options: those that the kind has.
        texts: what follows the first comma of the name, split at commas.
    """
    known = {option.name: option for option in options}
    if texts and not known:
        raise BadInput(f"{where}: {kind} has no options")
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise BadInput(f"{where}: options are written KEY=VALUE, not {text!r}")
        if key not in known:
            raise unknown("option", key, known, where)
        if key in values:
            raise BadInput(f"{where}: {key} is given twice")
        try:
            values[key] = known[key].parse(value)
        except BadInput as error:
            raise BadInput(f"{where}: {key}: {error}") from None
        except ValueError as error:
            raise BadInput(f"{where}: {key} must be {error}, not {value!r}") from None
    return tuple((key, values[key]) for key in known if key in values and values[key] != known[key].default)
