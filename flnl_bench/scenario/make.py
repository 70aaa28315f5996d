"""From (data set, partition, setting, number of clients, seed) to the scenario."""

from __future__ import annotations

import math

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.errors import BadInput, unknown
from flnl_bench.scenario.noise import draw_client_noise, noisy_labels
from flnl_bench.scenario.partition import parse_partition
from flnl_bench.scenario.scenario import Scenario
from flnl_bench.scenario.settings import Setting, parse_setting
from flnl_bench.streams import stream


def make_scenario(
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
        setting: a name such as `sym-1.0` or `clean`, see SETTINGS.
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
    """Given labels of all rows, and noise type and nominal ratio of each client."""
    given = dataset.train_y.copy()
    if setting.kind == "real":
        natural = _natural_labels(dataset, setting)
        for rows in held:
            given[rows] = natural[rows]
        return given, ("real",) * len(held), np.full(len(held), math.nan)
    if not dataset.truth_known:
        raise BadInput(f"setting {setting.name!r} needs true labels, which {dataset.name} lacks; use 'real'")
    class_map = _class_map(dataset, setting)
    drawn = draw_client_noise(setting, len(held), seed, dataset.family)
    for client, (rows, kind, ratio) in enumerate(zip(held, drawn.kinds, drawn.nominal, strict=True)):
        rng = stream(seed, "scenario", "labels", dataset.family, client)
        given[rows] = noisy_labels(given[rows], kind, ratio, len(dataset.classes), class_map, rng)
    return given, drawn.kinds, drawn.nominal


def _class_map(dataset: Dataset, setting: Setting) -> np.ndarray:
    if setting.kind != "asym-super":
        return dataset.asymmetric
    if dataset.superclass is None:
        raise BadInput(f"setting {setting.name!r}: {dataset.name} has no superclasses; cifar100 has")
    return dataset.superclass


def _natural_labels(dataset: Dataset, setting: Setting) -> np.ndarray:
    """The named set of natural labels; without a name the noisiest, as papers report it."""
    if not dataset.given:
        raise BadInput(f"setting {setting.name!r}: {dataset.name} has no natural noisy labels")
    if setting.labels is None:
        return dataset.given["worse" if "worse" in dataset.given else "noisy"]
    if setting.labels not in dataset.given:
        raise unknown(
            "label set", setting.labels, dataset.given, f"setting {setting.name!r} of {dataset.name}"
        )
    return dataset.given[setting.labels]
