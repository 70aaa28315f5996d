"""The classes whose right labels a method's sieve throws away."""

from __future__ import annotations

from pathlib import Path

from flnl_bench.errors import BadInput
from flnl_bench.results.beliefs import read_beliefs


def class_recall(beliefs: Path) -> list[float | None]:
    """Return the share of right labels that is called clean, by class; None for a class that was not judged.

    Empty if there is no beliefs.npz, no sieve, or no known truth.
    """
    if not beliefs.exists():
        return []
    try:
        arrays = read_beliefs(beliefs, ("given", "true", "clean"))
    except BadInput:
        return []
    given, clean = arrays["given"], arrays["clean"]
    if not len(given):
        return []
    right = (given == arrays["true"]) & (clean >= 0)
    recalls: list[float | None] = []
    for label in range(int(given.max()) + 1):
        judged = clean[right & (given == label)]
        recalls.append(float((judged == 1).mean()) if len(judged) else None)
    return recalls
