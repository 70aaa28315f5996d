"""A scenario: who holds which images, with which given labels."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.errors import BadInput
from flnl_bench.scenario.noise import NoisyClient, Setting, draw_client_noise, noisy_labels, parse_setting
from flnl_bench.scenario.partition import parse_partition
from flnl_bench.streams import stream

MOST_COUNTS = 2_000_000  # of transitions that are written down: 16 MB; 100 clients of 141 classes


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
    kinds: tuple[str, ...]  # noise of each client: clean, or a name of NOISES
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
    def transitions(self) -> np.ndarray | None:
        """How often class i became class j at each client, int64 [K, C, C]; None if that is too large."""
        if len(self.clients) * self.classes**2 > MOST_COUNTS:
            return None
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


def draw_scenario(
    dataset: Dataset,
    partition: str = "iid",
    setting: str = "sym-1.0",
    clients: int = 100,
    seed: int = 1,
    samples: int | None = None,
) -> Scenario:
    """The scenario of these names; nothing else changes a draw.

    Args:
        dataset: the loaded data set.
        partition: a name such as `iid` or `dir-0.3`, see PARTITIONS.
        setting: a name such as `sym-1.0` or `clean`, see NOISES.
        clients: the number of clients K.
        seed: of all draws; the partition is the same for all settings of one seed.
        samples: use only that many train images, drawn at random.
    """
    noise = parse_setting(setting)
    split = parse_partition(partition)
    rows = _subset(dataset, samples, seed)
    rng = stream(seed, "scenario", "partition", dataset.family, split.name, clients)
    held = tuple(rows[part] for part in split.split(dataset.train_y[rows], clients, rng))
    given, kinds, nominal = _label(dataset, noise, held, seed)
    return Scenario(
        dataset=dataset.name,
        partition=split.name,
        setting=noise.name,
        seed=seed,
        samples=samples,
        clients=held,
        given=given,
        true=dataset.train_y.copy(),
        classes=len(dataset.classes),
        kinds=kinds,
        nominal=nominal,
        dataset_digest=dataset.digest,
        truth_known=dataset.truth_known,
    )


def _subset(dataset: Dataset, samples: int | None, seed: int) -> np.ndarray:
    """The train rows in use, sorted."""
    total = len(dataset.train_y)
    if samples is None:
        return np.arange(total)
    if not 1 <= samples <= total:
        raise BadInput(
            f"samples must be from 1 to {total}, the train images of {dataset.name}, not {samples}"
        )
    return np.sort(stream(seed, "scenario", "subset", dataset.family).permutation(total)[:samples])


def _label(
    dataset: Dataset, setting: Setting, held: tuple[np.ndarray, ...], seed: int
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    """Given labels of all rows, and kind of noise and nominal ratio of each client."""
    if setting.kind.needs_truth and not dataset.truth_known:
        raise BadInput(f"setting {setting.name!r} needs true labels, which {dataset.name} lacks; use 'real'")
    given = dataset.train_y.copy()
    drawn = draw_client_noise(setting, len(held), seed, dataset.family)
    for number, (rows, kind, ratio) in enumerate(zip(held, drawn.kinds, drawn.nominal, strict=True)):
        rng = stream(seed, "scenario", "labels", dataset.family, number)
        client = NoisyClient(given[rows], rows, float(ratio), setting, dataset, rng, seed)
        given[rows] = noisy_labels(kind, client)
    return given, drawn.kinds, drawn.nominal


def client_table(scenario: Scenario) -> list[dict[str, Any]]:
    """One row for each client; None stands for what is not known."""
    known = scenario.truth_known
    return [
        {
            "client": client,
            "size": len(rows),
            "classes": len(np.unique(scenario.true[rows])),
            "noise": scenario.kinds[client],
            "nominal": _number(scenario.nominal[client]),
            "realised": _number(scenario.realised[client]) if known else None,
        }
        for client, rows in enumerate(scenario.clients)
    ]


def scenario_summary(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a whole."""
    sizes = scenario.sizes
    return {
        "dataset": scenario.dataset,
        "partition": scenario.partition,
        "setting": scenario.setting,
        "seed": scenario.seed,
        "fingerprint": scenario.fingerprint,
        "clients": len(sizes),
        "noisy_clients": sum(kind != "clean" for kind in scenario.kinds),
        "images": sum(sizes),
        "smallest": min(sizes),
        "largest": max(sizes),
        "realised": _number(scenario.overall) if scenario.truth_known else None,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 4)
