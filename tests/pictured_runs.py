"""Runs with known curves and beliefs, made in no time, for the tests of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from synthetic_runs import round_row, with_rounds, write_run

GIVEN = np.array([0, 1, 1, 0, 2, 2, 0, 1])
TRUE = np.array([0, 1, 0, 0, 2, 1, 2, 1])  # 2, 5 and 6 are labelled wrongly
CLIENT = np.array([0, 0, 0, 0, 1, 1, 2, 2])  # 1 of 4, 1 of 2 and 1 of 2 wrong
KINDS = np.array(["clean", "sym", "sym"])
BELIEFS = {
    "row": np.arange(8),
    "client": CLIENT,
    "given": GIVEN,
    "true": TRUE,
    "noise_kind": KINDS,
    "nominal_ratio": np.array([0.0, 0.5, 0.5]),
    "realised_ratio": np.array([0.25, 0.5, 0.5]),
    "estimated_ratio": np.array([0.2, 0.9, np.nan]),
    "noisy_client": np.array([-1, -1, -1]),
    "clean": np.array([1, 1, 0, 1, 1, 1, -1, -1]),
    "clean_probability": np.array([0.9, 0.8, 0.1, 0.9, 0.7, 0.6, np.nan, np.nan]),
    "losses": np.array([0.1, 0.2, 2.0, 0.1, 0.4, 0.5, np.nan, np.nan]),
}
ROUNDS = 4


def transitions(true=TRUE, given=GIVEN, client=CLIENT, classes=3) -> np.ndarray:
    counts = np.zeros((client.max() + 1, classes, classes), dtype=int)
    np.add.at(counts, (client, true, given), 1)
    return counts


def write_curve(
    out, accuracies, method="fedavg", memorised=None, beliefs=BELIEFS, training=None, **more
) -> Path:
    """A finished run with these accuracies, a number for each round."""
    rounds = len(accuracies)
    path = write_run(
        out,
        method,
        accuracy=float(np.mean(accuracies)),
        training={"rounds": rounds, **(training or {})},
        **more,
    )
    rows = [round_row(n, accuracy) for n, accuracy in enumerate(accuracies)]
    for row, share in zip(rows, memorised or [], strict=False):
        row["diagnostics"]["memorised"] = share
    with_rounds(path, rows)
    if beliefs is not None:
        np.savez_compressed(path / "beliefs.npz", **{"transitions": transitions(), **beliefs})
    return path


def without(*names) -> dict:
    """The beliefs of a method that has no such opinion."""
    return {name: values for name, values in BELIEFS.items() if name not in names}
