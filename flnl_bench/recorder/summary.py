"""Headline numbers of a run, from its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAST = 10  # rounds in the headline mean
COSTS = ("bytes_down", "bytes_up", "forward", "backward")


def summarise(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """last10: mean test accuracy of the last ten rounds; best: the highest; and the summed costs."""
    accuracies = [row["accuracy"] for row in rounds]
    best = max(range(len(accuracies)), key=accuracies.__getitem__)
    tail = accuracies[-LAST:]
    return {
        "rounds": len(rounds),
        "last10": sum(tail) / len(tail),
        "best": accuracies[best],
        "best_round": best,
        "final": accuracies[-1],
        "seconds": sum(row["seconds"] for row in rounds),
        **{name: sum(row[name] for row in rounds) for name in COSTS},
    }
