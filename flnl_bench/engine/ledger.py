"""The ledger of a run: counters of work, bytes, and the content of every message.

There is an entry for each name that is sent in addition to the weights: `per` (sample, class or client) is
the unit that it is sent for, `messages` and `units` count messages and these units, `numbers` and `bytes` are
the totals. This module does not import torch, because tables and records read ledgers, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

PER = ("sample", "class", "client")
PARTS = ("messages", "units", "numbers", "bytes")
Sent = Mapping[str, Mapping[str, Any]]


# -- counters ----------------------------------------------------------------------------------------
@dataclass
class Cost:
    """Counters of the engine and the networks."""

    bytes_down: int = 0
    bytes_up: int = 0
    forward: int = 0  # samples through a network, with or without gradient
    backward: int = 0  # samples with a gradient
    mixtures: int = 0  # fits of a mixture, on clients and on the server
    searches: int = 0  # searches of the nearest neighbours of all samples of a client
    reads: frozenset[str] = frozenset()  # fields of Terms that the method read and that count as assumptions

    def add(self, other: Cost) -> None:
        """Add the counts of `other` to this one."""
        self.reads |= other.reads
        for counter in fields(self):
            if counter.name != "reads":
                setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))


_pending = Cost()  # work of this process that networks cannot count, until the engine takes it


def count_work(*, mixtures: int = 0, searches: int = 0) -> None:
    """Count work other than passes through a network."""
    _pending.add(Cost(mixtures=mixtures, searches=searches))


def count_read(name: str) -> None:
    """Record that a method read a field of Terms."""
    _pending.reads |= {name}


def take_work() -> Cost:
    """Return and reset the work that `count_work` counted in this process."""
    global _pending
    taken, _pending = _pending, Cost()
    return taken


def count_bytes(tree: Any) -> int:
    """Return the bytes of a message: arrays as stored, 8 per number, one per character."""
    if hasattr(tree, "nbytes"):  # a tensor, an array or one of NumPy's numbers
        return int(tree.nbytes)
    if isinstance(tree, Mapping):  # both sides know the keys
        return sum(count_bytes(value) for value in tree.values())
    if isinstance(tree, list | tuple | set | frozenset):
        return sum(count_bytes(value) for value in tree)
    if isinstance(tree, str | bytes):
        return len(tree)
    if isinstance(tree, bool | int | float):
        return 8
    if tree is None:
        return 0
    raise TypeError(f"a message may not hold a {type(tree).__name__}: its size on the wire is unknown")


# -- messages ----------------------------------------------------------------------------------------
def leaving(message: Mapping[str, Any], samples: int, classes: int) -> dict[str, dict[str, Any]]:
    """Return a ledger entry per name of a message, from lengths alone: nothing is read from a device."""
    entries = {}
    for name, part in message.items():
        leaves = list(_leaves(part))
        if numbers := sum(count for _, count in leaves):
            per, units = _unit({length for length, _ in leaves}, samples, classes)
            entry = {"per": per, "messages": 1, "units": units, "numbers": numbers}
            entries[str(name)] = {**entry, "bytes": count_bytes(part)}
    return entries


def _unit(lengths: set[int], samples: int, classes: int) -> tuple[str, int]:
    """Return the unit of a part with leaves of these lengths, and the number of units."""
    if lengths == {samples}:  # before classes: a client may have as many samples as there are classes
        return "sample", samples
    return ("class", classes) if lengths == {classes} else ("client", 1)


def _leaves(part: Any) -> Iterator[tuple[int, int]]:
    """Yield length and size of every array; a single number has length 0."""
    if hasattr(part, "ndim"):  # a tensor or an array
        yield (part.shape[0] if part.ndim else 0), math.prod(part.shape)
    elif isinstance(part, Mapping | list | tuple | set | frozenset):
        values = part.values() if isinstance(part, Mapping) else part
        inner = [leaf for value in values for leaf in _leaves(value)]
        yield from [(len(part), len(inner))] if all(length == 0 for length, _ in inner) else inner
    elif part is not None:
        yield 0, 1


def merge(parts: Iterable[Sent]) -> dict[str, dict[str, Any]]:
    """Add up the ledger entries of several messages or rounds.

    If the unit of a name differs, "client" takes precedence over "class", and "class" over "sample": a client
    may have as many samples as there are classes.
    """
    entries: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for part in parts:
        for name, entry in part.items():
            entries[name].append(entry)
    return {name: _total(same) for name, same in sorted(entries.items())}


def _total(entries: list[Mapping[str, Any]]) -> dict[str, Any]:
    per = max((entry["per"] for entry in entries), key=PER.index)
    total = {key: sum(entry[key] for entry in entries) for key in PARTS}
    return {"per": per, **total, "units": total["messages"] if per == "client" else total["units"]}


def sentence(sent: Sent) -> str:
    """Describe in a sentence what a client sends in addition to the weights."""
    if sent.keys() <= {"n_k"}:
        return "Besides weights, a client sends the number of its samples and nothing else."
    phrases = []
    for per, words in zip(PER, ("for each of its samples", "for each class", "once"), strict=True):
        entries = {name: entry for name, entry in sent.items() if entry["per"] == per}
        if entries:
            count, size = (per_unit(entries, key) for key in ("numbers", "bytes"))
            plural = "" if count == 1 else "s"
            phrases.append(f"{count:.4g} number{plural} {words} ({', '.join(entries)}; {size:.4g} bytes)")
    return f"Besides weights, a client sends {', '.join(phrases)}."


def per_unit(sent: Sent, key: str, per: str | None = None) -> float:
    """Return the "numbers" or "bytes" that are sent per unit, of all entries or of those with this unit."""
    total: float = sum(entry[key] / entry["units"] for entry in sent.values() if per in (None, entry["per"]))
    return total
