"""Which classes a method's sieve throws away."""

from __future__ import annotations

from pathlib import Path

from flnl_bench.errors import BadInput
from flnl_bench.results.beliefs import read_beliefs


def class_recall(beliefs: Path) -> list[float | None]:
    """The share of right labels that is called clean, by class, from beliefs.npz; None: nothing was judged.

    Empty where there is no such file, no sieve, or no known truth.
    """
    if not beliefs.exists():
        return []
    try:
        found = read_beliefs(beliefs, ("given", "true", "clean"))
    except BadInput:
        return []
    given, clean = found["given"], found["clean"]
    if not len(given):
        return []
    right = (given == found["true"]) & (clean >= 0)
    recalls: list[float | None] = []
    for label in range(int(given.max()) + 1):
        judged = clean[right & (given == label)]
        recalls.append(float((judged == 1).mean()) if len(judged) else None)
    return recalls
