"""False accusations: what a method takes for wrong although it is right, and who suffers from it.

Right labels that a sieve rejects, classes that lose their right labels, clean clients that are called noisy,
and the test accuracy of the worst class and the worst client. Open-set images, for which no label is right,
never count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flnl_bench.api import Beliefs
from flnl_bench.results.diagnostics import as_array
from flnl_bench.scenario import Scenario

LOST = 0.5  # a class of whose right labels fewer than this share survive is lost
Shares = Sequence[float | None]  # by class or client; None without a denominator


class Accusations:
    """Counts right labels by client and class; new beliefs about a client replace the older ones."""

    def __init__(self, scenario: Scenario) -> None:
        shape = (len(scenario.clients), scenario.classes)
        self.scenario = scenario
        # Right samples [K, C]: judged by the sieve, and rejected; with a current label, and the right one.
        self.sieved, self.accused, self.labelled, self.kept = np.zeros((4, *shape), np.int64)
        self.called_noisy = np.full(shape[0], -1, np.int8)  # -1: not judged
        self.clean_clients = scenario.realised == 0
        self.rare = scenario.rare

    def update(self, beliefs: Mapping[int, Beliefs]) -> None:
        """Replace the beliefs about some clients."""
        classes = self.scenario.classes
        for k, belief in beliefs.items():
            rows = self.scenario.clients[k]
            true = self.scenario.true[rows]
            right = (self.scenario.given[rows] == true) & (true >= 0)

            def by_class(chosen: np.ndarray, true: np.ndarray = true) -> np.ndarray:
                return np.bincount(true[chosen], minlength=classes)

            if belief.clean is not None:
                clean = as_array(belief.clean).astype(bool)
                self.sieved[k], self.accused[k] = by_class(right), by_class(right & ~clean)
            if belief.labels is not None:
                labels = as_array(belief.labels)
                self.labelled[k], self.kept[k] = by_class(right), by_class(right & (labels == true))
            if belief.noisy_client is not None:
                self.called_noisy[k] = belief.noisy_client

    def report(self) -> dict[str, float | int | None]:
        """Return the numbers of a round; a method without such beliefs has none."""
        numbers: dict[str, float | int | None] = {}
        if self.sieved.any():
            numbers |= {"accused_right": self._accused(), **self._by_group("accused_right", self._accused)}
            numbers["accused_right_clean_clients"] = self._accused(self.clean_clients)
            rare, common = (numbers.get(f"accused_right_{group}") for group in ("rare", "common"))
            if rare is not None and common is not None:
                numbers["rarity_penalty"] = rare - common
        survival = [share for share in self.survival if share is not None]
        if survival:
            numbers["survival_worst"] = min(survival)
            numbers["classes_lost"] = sum(share < LOST for share in survival)
        if (self.called_noisy >= 0).any():
            numbers |= {
                "accused_clients": self._accused_clients(),
                **self._by_group("accused_clients", self._accused_clients),
            }
        return numbers

    @property
    def survival(self) -> Shares:
        """Return the share of the right labels of each class that the method still trains on."""
        by_label = self.labelled.any()
        count = (self.labelled if by_label else self.sieved).sum(0)
        left = self.kept.sum(0) if by_label else count - self.accused.sum(0)
        return [int(n) / int(of) if of else None for n, of in zip(left, count, strict=True)]

    def _by_group(self, name: str, measure: Any) -> dict[str, float | None]:
        """Return a measure of the rare clients and of the other clean ones."""
        if self.rare is None:
            return {}
        groups = {"rare": self.rare, "common": self.clean_clients & ~self.rare}
        return {f"{name}_{group}": measure(members) for group, members in groups.items()}

    def _accused(self, members: np.ndarray | slice = slice(None)) -> float | None:
        count = int(self.sieved[members].sum())
        return int(self.accused[members].sum()) / count if count else None

    def _accused_clients(self, members: np.ndarray | None = None) -> float | None:
        judged = (self.called_noisy >= 0) & self.clean_clients & (True if members is None else members)
        return float((self.called_noisy[judged] > 0).mean()) if judged.any() else None


def worst(scenario: Scenario, class_accuracy: Shares) -> dict[str, float | None]:
    """Return the test accuracy of the worst class, and to three digits those of the worst clients."""
    known = [accuracy for accuracy in class_accuracy if accuracy is not None]
    of_clients = client_accuracy(scenario, class_accuracy)
    clients = np.sort(of_clients[np.isfinite(of_clients)]).tolist()
    tenth = clients[: math.ceil(len(clients) / 10)]
    return {
        "worst_class": min(known, default=None),
        "worst_client": round(clients[0], 3) if clients else None,
        "worst_tenth": round(sum(tenth) / len(tenth), 3) if tenth else None,
    }


def client_accuracy(scenario: Scenario, class_accuracy: Shares) -> np.ndarray:
    """Return the test accuracy weighted by the true classes of each client [K]; NaN if no class is tested."""
    accuracy = np.array([np.nan if value is None else value for value in class_accuracy], float)
    tested = np.isfinite(accuracy)
    counts = scenario.class_counts[:, tested]
    totals = counts.sum(1)
    # A product per client: one with all of them would round differently.
    sums = np.matmul(counts[:, None, :].astype(float, order="C"), accuracy[tested][:, None])[:, 0, 0]
    return np.where(totals > 0, sums / np.maximum(totals, 1), np.nan)
