"""What a message of a client holds: for each of its samples, for each class, or for the client as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from flnl_bench.engine.contract import count_bytes


def leaving(message: Mapping[str, Any], samples: int, classes: int) -> dict[str, dict[str, Any]]:
    """One entry a name of the message, told from lengths alone; nothing is read from a device."""
    found = {}
    for name, part in message.items():
        leaves = list(_leaves(part))
        if numbers := sum(count for _, count in leaves):
            per, units = _unit({length for length, _ in leaves}, samples, classes)
            entry = {"per": per, "messages": 1, "units": units, "numbers": numbers}
            found[str(name)] = {**entry, "bytes": count_bytes(part)}
    return found


def _unit(lengths: set[int], samples: int, classes: int) -> tuple[str, int]:
    """What a part with leaves of these lengths is sent for, and how many of them there are."""
    if lengths == {samples}:  # before classes: a client may have as many samples as there are classes
        return "sample", samples
    return ("class", classes) if lengths == {classes} else ("client", 1)


def _leaves(part: Any) -> Iterator[tuple[int, int]]:
    """Length and count of numbers of every array; a number alone has the length 0."""
    if isinstance(part, Tensor | np.ndarray):
        yield (part.shape[0] if part.ndim else 0), int(np.prod(part.shape))
    elif isinstance(part, Mapping | list | tuple | set | frozenset):
        values = part.values() if isinstance(part, Mapping) else part
        inner = [leaf for value in values for leaf in _leaves(value)]
        yield from [(len(part), len(inner))] if all(length == 0 for length, _ in inner) else inner
    elif part is not None:
        yield 0, 1
