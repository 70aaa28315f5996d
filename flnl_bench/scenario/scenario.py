"""A scenario: who holds which images, with which given labels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Scenario:
    """One federation, the same for every method that is measured on it."""

    dataset: str
    partition: str
    setting: str
    seed: int
    samples: int | None  # how many train images are used; None: all
    clients: tuple[np.ndarray, ...]  # sorted int64 row numbers into the train set
    given: np.ndarray  # int64 [N], the labels to train on; rows of no client keep the true one
    true: np.ndarray  # int64 [N]
    classes: int
    kinds: tuple[str, ...]  # noise type of each client: clean, sym, asym or real
    nominal: np.ndarray  # float64 [K], ρ_k; not a number for natural noise
    dataset_digest: str
    truth_known: bool = True  # False: `true` is a copy of `given`, and what needs the truth means nothing

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of images of each client."""
        return tuple(len(rows) for rows in self.clients)

    @cached_property
    def wrong(self) -> np.ndarray:
        """Whether the given label is not the true one, bool [N]."""
        return self.given != self.true

    @cached_property
    def realised(self) -> np.ndarray:
        """The share of wrong labels of each client, float64 [K]."""
        return np.array([self.wrong[rows].mean() for rows in self.clients])

    @property
    def overall(self) -> float:
        """The share of wrong labels over the images of all clients."""
        return float(self.realised @ self.sizes / sum(self.sizes))

    @property
    def transitions(self) -> np.ndarray:
        """How often class i became class j at each client, int64 [K, C, C]."""
        pairs = self.true * self.classes + self.given
        counts = [np.bincount(pairs[rows], minlength=self.classes**2) for rows in self.clients]
        return np.stack(counts).reshape(-1, self.classes, self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that are the same for the same federation, and only for it."""
        hasher = hashlib.blake2b(digest_size=8)
        family = self.dataset.partition(":")[0]
        hasher.update(f"{family}/{self.dataset_digest}/{self.classes}/{self.sizes}".encode())
        for array in (*self.clients, self.given, self.true):
            hasher.update(array.astype("<i8").tobytes())
        return hasher.hexdigest()
