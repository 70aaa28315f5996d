"""Headline numbers of a run, from its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAST = 10  # rounds in the headline mean
COSTS = ("bytes_down", "bytes_up", "forward", "backward")


def summarise(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """last10: mean test accuracy of the last ten rounds; best: the highest; and the summed costs.

    None stands for what is not known; `best_round` counts from 0, as does `diverged`, the first round
    whose test loss is not finite.
    """
    accuracies = [row["accuracy"] for row in rounds]
    tail = accuracies[-LAST:]
    known = [i for i, accuracy in enumerate(accuracies) if accuracy is not None]
    best = max(known, key=accuracies.__getitem__, default=None)
    return {
        "rounds": len(rounds),
        "last10": None if None in tail else sum(tail) / len(tail),
        "best": None if best is None else accuracies[best],
        "best_round": best,
        "final": accuracies[-1],
        "diverged": next((i for i, row in enumerate(rounds) if row.get("loss", 0.0) is None), None),
        "seconds": sum(row["seconds"] for row in rounds),
        **{name: sum(row[name] for row in rounds) for name in COSTS},
    }
