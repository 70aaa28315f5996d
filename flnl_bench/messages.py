"""What leaves a client beside the weights: as a round and run.json have it, and in words.

By name of what is sent: `per` says whether it is sent for each sample, for each class or once a client,
`messages` and `units` (samples, classes or clients) how often, `numbers` and `bytes` how much in all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

PER = ("sample", "class", "client")
PARTS = ("messages", "units", "numbers", "bytes")
Sent = Mapping[str, Mapping[str, Any]]


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
    return sum(entry[what] / entry["units"] for entry in sent.values() if per in (None, entry["per"]))
