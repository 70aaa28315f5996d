"""The spread of each class over the clients, and the chance that a round hardly sees a class."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnl_bench.random_streams import stream
from flnl_bench.scenario.scenario import Scenario

SCARCE = 0.02  # share of a round's images below which a class is scarce
SIMULATED_ROUNDS = 10_000  # standard error of a chance: 0.5 percentage points at most


def effective_holders(counts: np.ndarray) -> np.ndarray:
    """Return 1/Σ_k share_k² of each class, float64 [C], from the images by client and class [K, C].

    share_k is the share of the class's images that client k holds: with equal shares the result is the
    number of holders. It is 0 for a class without images.
    """
    images = counts.sum(axis=0)
    squares = (counts.astype(float) ** 2).sum(axis=0)
    return np.where(images > 0, images.astype(float) ** 2 / np.maximum(squares, 1), 0.0)


def scarce_chance(counts: np.ndarray, sampled: int) -> np.ndarray:
    """Return the chance of each class to have less than 2 % of a round's images, float64 [C].

    `sampled` of the K clients are drawn uniformly. The chance is simulated with a fixed seed, so the same
    counts always give the same chance; it is exact if all clients take part in every round.
    """
    clients = len(counts)
    rounds = 1 if sampled >= clients else SIMULATED_ROUNDS
    draws = stream(0, "class-spread")
    scarce = np.zeros(counts.shape[1])
    for _ in range(rounds):
        images = counts[draws.choice(clients, min(sampled, clients), replace=False)].sum(axis=0)
        scarce += images < SCARCE * images.sum()
    return scarce / rounds


def class_table(scenario: Scenario, sampled: int) -> list[dict[str, Any]]:
    """Return one row per class, by true classes, for `sampled` clients per round.

    The purity of a class is the share of right labels among its given labels; a class of purity 0 is lost.
    """
    slots = scenario.slots
    rows = np.concatenate(scenario.clients)
    given, right = scenario.given[rows], scenario.given[rows][~scenario.wrong[rows]]
    labelled, right_ones = (np.bincount(y, minlength=scenario.classes) for y in (given, right))
    counts = np.stack([np.bincount(slots[rows], minlength=scenario.classes) for rows in scenario.clients])
    columns = counts.sum(axis=0), (counts > 0).sum(axis=0), effective_holders(counts)
    return [
        {
            "class": label,
            "images": int(images),
            "holders": int(holders),
            "effective_holders": round(float(effective), 2),
            "scarce": round(float(chance), 4),
            "purity": round(int(right_ones[label]) / int(labelled[label]), 4)
            if scenario.truth_known and labelled[label]
            else None,
        }
        for label, (images, holders, effective, chance) in enumerate(
            zip(*columns, scarce_chance(counts, sampled), strict=True)
        )
    ]
