"""A scenario: which client holds which images, with which given labels."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.data import load_dataset
from flnl_bench.data.dataset import Dataset, LoadProgress
from flnl_bench.data.own_files import locate
from flnl_bench.errors import BadInput, require
from flnl_bench.random_streams import stream
from flnl_bench.registry import call
from flnl_bench.scenario.noise import apply_noise, noisy_order, parse_setting
from flnl_bench.scenario.open_set import in_shape
from flnl_bench.scenario.partition import parse_partition
from flnl_bench.scenario.setting import rounded_down

MOST_TRANSITIONS = 2_000_000  # 16 MB; as many as 100 clients have with 141 classes


@dataclass(frozen=True, eq=False)
class Scenario:
    """One federation, the same for every method that is compared."""

    dataset: str
    partition: str
    setting: str
    seed: int
    samples: int | None  # number of train images in use; None: all
    clients: tuple[np.ndarray, ...]  # sorted int64 row numbers into the train set
    given: np.ndarray  # int64 [N], the labels to train on; rows of no client keep the true label
    true: np.ndarray  # int64 [N]; -1: an open-set image, for which no label is right
    classes: int
    kinds: tuple[str, ...]  # noise of each client: clean, or a name of NOISES
    nominal: np.ndarray  # float64 [K], ρ_k; NaN for natural noise
    dataset_digest: str
    truth_known: bool = True  # False: `true` is a copy of `given`, and measures of errors have no meaning
    announced: float | None = None  # share of wrong labels that methods know, if the data decide it
    replaced: np.ndarray | None = None  # int64 [N], the image of the pool that replaces each row's; -1: none
    pool_digest: str | None = None  # of the data set that the pool comes from

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of images of each client."""
        return tuple(len(rows) for rows in self.clients)

    @cached_property
    def wrong(self) -> np.ndarray:
        """Whether the given label is not the true one, bool [N]."""
        differs: np.ndarray = self.given != self.true
        return differs

    @cached_property
    def class_counts(self) -> np.ndarray:
        """The images of each true class that each client holds, without open-set images, int64 [K, C]."""
        true = (self.true[rows] for rows in self.clients)
        return np.array([np.bincount(y[y >= 0], minlength=self.classes) for y in true])

    @cached_property
    def is_open(self) -> np.ndarray:
        """Whether the image is an open-set image, which has no right class, bool [N]."""
        return self.true < 0

    @cached_property
    def rare(self) -> np.ndarray | None:
        """Which clients hold the rare classes, bool [K]; None if the partition has no such clients."""
        count = parse_partition(self.partition).rare_clients(len(self.clients))
        if not count:
            return None
        rare = np.zeros(len(self.clients), bool)
        rare[noisy_order(len(rare), self.seed, self.dataset.partition(":")[0])[-count:]] = True
        return rare

    @property
    def slots(self) -> np.ndarray:
        """The true classes of the original images, int64 [N], also where an open-set image replaces them."""
        return np.where(self.is_open, self.given, self.true)

    @property
    def expected_noise(self) -> float:
        """The share of wrong labels that methods know; NaN for natural noise."""
        return parse_setting(self.setting).expected_ratio if self.announced is None else self.announced

    @cached_property
    def realised(self) -> np.ndarray:
        """The share of wrong labels of each client, float64 [K]."""
        return np.array([self.wrong[rows].mean() for rows in self.clients])

    @cached_property
    def realised_open(self) -> np.ndarray:
        """The share of open-set images of each client, float64 [K]; they are among the wrong labels."""
        return np.array([self.is_open[rows].mean() for rows in self.clients])

    @property
    def overall(self) -> float:
        """The share of wrong labels over the images of all clients."""
        return float(self.realised @ self.sizes / sum(self.sizes))

    @property
    def transitions(self) -> np.ndarray | None:
        """How often class i became class j at each client, int64 [K, C, C]; None if the table is too large.

        With open-set noise it is [K, C + 1, C]: the last row counts the labels of open-set images.
        """
        height = self.classes + (self.replaced is not None)
        if len(self.clients) * height * self.classes > MOST_TRANSITIONS:
            return None
        pairs = np.where(self.is_open, self.classes, self.true) * self.classes + self.given
        counts = [np.bincount(pairs[rows], minlength=height * self.classes) for rows in self.clients]
        return np.stack(counts).reshape(-1, height, self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the images, index lists and labels: 16 hexadecimal digits that identify the federation."""
        hasher = hashlib.blake2b(digest_size=8)
        family = self.dataset.partition(":")[0]
        hasher.update(f"{family}/{self.dataset_digest}/{self.classes}/{self.sizes}".encode())
        for array in (*self.clients, self.given, self.true):
            hasher.update(array.astype("<i8").tobytes())
        if self.replaced is not None:
            hasher.update(f"{self.pool_digest}".encode())
            hasher.update(self.replaced.astype("<i8").tobytes())
        return hasher.hexdigest()


def draw_scenario(
    dataset: Dataset,
    partition: str = "iid",
    setting: str = "sym-1.0",
    clients: int = 100,
    seed: int = 1,
    samples: int | None = None,
) -> Scenario:
    """Draw the scenario of these names; no other input changes a draw.

    Args:
        dataset: the loaded data set, as `stage` returns it.
        partition: a name such as `iid` or `dir-0.3`, see PARTITIONS.
        setting: a name such as `sym-1.0` or `clean`, see NOISES.
        clients: the number of clients K.
        seed: of all draws; the partition is the same for all settings of one seed.
        samples: the number of train images in use, drawn at random; None: all.
    """
    noise = parse_setting(setting)
    split = parse_partition(partition)
    rows = _subset(dataset, samples, seed)
    rows = rows[split.keep(dataset.train_y[rows], stream(seed, "scenario", "tail", dataset.family))]
    rng = stream(seed, "scenario", "partition", dataset.family, split.name, clients)
    held = [rows[part] for part in split.split(dataset.train_y[rows], clients, rng)]
    if rare := split.rare_clients(clients):
        if rounded_down(noise.phi * clients) > clients - rare:
            raise BadInput(
                f"setting {noise.name!r}: with the partition {split.name!r} at most {clients - rare} of "
                f"{clients} clients can be noisy, because the {rare} clients with rare classes are clean"
            )
        parts = dict(zip(noisy_order(clients, seed, dataset.family).tolist(), held, strict=True))
        held = [parts[client] for client in range(clients)]
    return Scenario(
        dataset=dataset.name,
        partition=split.name,
        setting=noise.name,
        seed=seed,
        samples=samples,
        clients=tuple(held),
        classes=len(dataset.classes),
        dataset_digest=dataset.digest,
        truth_known=dataset.truth_known,
        **apply_noise(dataset, noise, tuple(held), seed),
    )


def generate(
    dataset: Dataset,
    partition: str,
    setting: str,
    clients: int,
    seed: int,
    samples: int | None,
    asked: int | None = None,
) -> Scenario:
    """Draw a scenario; the size of a subset may exceed the data if it is the preset's, not the user's."""
    most = len(dataset.train_y)
    require((asked or 0) <= most, "samples", asked, f"at most {most}, the train images of {dataset.name}")
    if samples is not None and samples >= most:
        samples = None
    parse_partition(partition).check(samples or most, clients)
    return draw_scenario(
        dataset, partition=partition, setting=setting, clients=clients, seed=seed, samples=samples
    )


def stage(
    dataset: Dataset, setting: str, data_dir: Path | None = None, progress: LoadProgress | None = None
) -> Dataset:
    """Find the files that a setting names, and add the pool of images that open-set noise needs."""
    noise = parse_setting(setting)
    locate(noise.name, data_dir)
    if noise.kind.stage is None or dataset.pool is not None:
        return dataset
    load = partial(load_dataset, data_dir=data_dir, progress=progress)
    staged: Dataset = call(f"noise {noise.kind.name!r}", noise.kind.stage, dataset, noise, load)
    return staged


def dress(dataset: Dataset, scenario: Scenario) -> Dataset:
    """Put the open-set images of a scenario in the places of the images that they replace."""
    if scenario.replaced is None or dataset.pool is None:
        return dataset
    rows = np.flatnonzero(scenario.replaced >= 0)
    images = np.array(dataset.train_x)
    images[rows] = in_shape(dataset.pool.images[scenario.replaced[rows]], images.shape[1:])
    return replace(dataset, train_x=images, pool=None)


def _subset(dataset: Dataset, samples: int | None, seed: int) -> np.ndarray:
    """Return the train rows in use, sorted."""
    total = len(dataset.train_y)
    if samples is None:
        return np.arange(total)
    if not 1 <= samples <= total:
        raise BadInput(
            f"samples must be from 1 to {total}, the train images of {dataset.name}, not {samples}"
        )
    return np.sort(stream(seed, "scenario", "subset", dataset.family).permutation(total)[:samples])


def client_table(scenario: Scenario) -> list[dict[str, Any]]:
    """Return one row per client; unknown values are None."""
    known, slots = scenario.truth_known, scenario.slots
    return [
        {
            "client": client,
            "size": len(rows),
            "classes": len(np.unique(slots[rows])),
            "noise": scenario.kinds[client],
            **({} if scenario.rare is None else {"rare": bool(scenario.rare[client])}),
            "nominal": _number(scenario.nominal[client]),
            "realised": _number(scenario.realised[client]) if known else None,
            **_apart(scenario, scenario.realised[client], scenario.realised_open[client]),
        }
        for client, rows in enumerate(scenario.clients)
    ]


def scenario_summary(scenario: Scenario) -> dict[str, Any]:
    """Return the names, sizes and shares of wrong labels of the whole scenario."""
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
        **_apart(scenario, scenario.overall, float(scenario.realised_open @ sizes / sum(sizes))),
    }


def _apart(scenario: Scenario, wrong: float, is_open: float) -> dict[str, float | None]:
    """Split a share of wrong labels into open-set images and other errors, for open-set noise only."""
    if scenario.replaced is None:
        return {}
    return {"realised_open": _number(is_open), "realised_closed": _number(wrong - is_open)}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 4)
