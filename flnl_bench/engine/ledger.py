"""What a run costs and what leaves a client: counters, bytes, and the content of every message.

A ledger of messages has an entry for each name that is sent next to the weights: `per` says whether it is
sent for each sample, for each class or once per client, `messages` and `units` (samples, classes or clients)
how often, `numbers` and `bytes` how much in all. No torch here: tables and records read ledgers, too.
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
    """Counters that the engine and the networks add to."""

    bytes_down: int = 0
    bytes_up: int = 0
    forward: int = 0  # samples through a network, with or without gradient
    backward: int = 0  # samples whose gradient was asked for
    mixtures: int = 0  # fits of a mixture, on clients and on the server
    searches: int = 0  # searches of the nearest neighbours of all samples of a client

    def add(self, other: Cost) -> None:
        """Add the counts of `other` to this one."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


_pending = Cost()  # of this process: what no network can count, until the engine takes it


def count_work(*, mixtures: int = 0, searches: int = 0) -> None:
    """Count work that is no pass through a network."""
    _pending.add(Cost(mixtures=mixtures, searches=searches))


def take_work() -> Cost:
    """What was counted since this was last asked in this process."""
    global _pending
    taken, _pending = _pending, Cost()
    return taken


def count_bytes(tree: Any) -> int:
    """Bytes of a message: array data as stored, 8 for a number, one per character of a string."""
    if hasattr(tree, "nbytes"):  # a tensor, an array or one of NumPy's numbers
        return int(tree.nbytes)
    if isinstance(tree, Mapping):  # without the keys, which both sides know
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
    if hasattr(part, "ndim"):  # a tensor or an array
        yield (part.shape[0] if part.ndim else 0), math.prod(part.shape)
    elif isinstance(part, Mapping | list | tuple | set | frozenset):
        values = part.values() if isinstance(part, Mapping) else part
        inner = [leaf for value in values for leaf in _leaves(value)]
        yield from [(len(part), len(inner))] if all(length == 0 for length, _ in inner) else inner
    elif part is not None:
        yield 0, 1


def merge(parts: Iterable[Sent]) -> dict[str, dict[str, Any]]:
    """Several messages, or several rounds of them, as one.

    What has the length of a client's samples in one message and that of the classes in all is for classes;
    what has neither in one is a client's.
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
    """What a client sends beside the weights, for people."""
    if sent.keys() <= {"n_k"}:
        return "Beside the weights a client sends the number of its samples and nothing else."
    told = []
    for per, words in zip(PER, ("for each of its samples", "for each class", "once"), strict=True):
        entries = {name: entry for name, entry in sent.items() if entry["per"] == per}
        if entries:
            count, size = (amount(entries, what) for what in ("numbers", "bytes"))
            plural = "" if count == 1 else "s"
            told.append(f"{count:.4g} number{plural} {words} ({', '.join(entries)}; {size:.4g} bytes)")
    return f"Beside the weights a client sends {', '.join(told)}."


def amount(sent: Sent, what: str, per: str | None = None) -> float:
    """How many numbers or bytes a sample, class or client means, of what is sent for these."""
    total: float = sum(entry[what] / entry["units"] for entry in sent.values() if per in (None, entry["per"]))
    return total
