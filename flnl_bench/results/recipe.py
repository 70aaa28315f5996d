"""The scenario of a run of others, drawn again from its configuration and compared with the record."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flnl_bench.api import Beliefs
from flnl_bench.config import RunConfig
from flnl_bench.data import Dataset, is_at_hand, load_dataset
from flnl_bench.errors import BadInput, MissingData, one_line
from flnl_bench.results.diagnostics import belief_arrays
from flnl_bench.results.run_record import RunRecord, ScenarioFacts
from flnl_bench.scenario import Scenario, generate, parse_setting, stage

OF_METHOD = ("estimated_ratio", "noisy_client")  # arrays over clients that the scenario does not decide


def check_facts(facts: ScenarioFacts, config: RunConfig) -> None:
    """Refuse facts about a scenario that no scenario of this configuration has; a ValueError says which."""
    training = config.training
    if facts.clients != training.clients:
        raise ValueError(f"its scenario has {facts.clients} clients, and its protocol {training.clients}")
    if not facts.clients <= facts.samples <= (training.samples or math.inf):
        raise ValueError(f"its scenario has {facts.samples} samples")
    if not (facts.noise_ratio is None or 0 <= facts.noise_ratio <= 1):
        raise ValueError(f"its noise ratio is {facts.noise_ratio}, not a share from 0 to 1")
    if not re.fullmatch("[0-9a-f]{16}", facts.fingerprint):
        raise ValueError(f"its fingerprint is {facts.fingerprint[:40]!r}, not 16 hexadecimal digits")


def check_drawn(record: RunRecord, beliefs: Mapping[str, np.ndarray], data_dir: Path | None) -> str | None:
    """Compare a record and its beliefs with the scenario, drawn again; return why that is not possible here.

    A ValueError names a difference. Nothing is downloaded.
    """
    config, training = record.config, record.config.training
    if not record.generated:
        return "they are on scenarios from files"
    try:
        if not _at_hand(config, data_dir):
            return f"{config.dataset} is not in the data folder"
        names = (config.partition, config.setting, training.clients, config.seed, training.samples)
        scenario = _drawn(config.dataset, data_dir, *names)
    except (BadInput, MissingData) as error:  # such as a plugin that is not installed
        return one_line(error)
    _compare(record.scenario, scenario)
    if beliefs:
        _compare_beliefs(beliefs, scenario)
    return None


def _at_hand(config: RunConfig, data_dir: Path | None) -> bool:
    kind = parse_setting(config.setting).kind
    staged = kind.stage is not None and "pool=classes:" not in config.setting  # images of another data set
    return is_at_hand(config.dataset, data_dir) and not staged


@functools.lru_cache(1)  # archives are in the order of their data sets
def _dataset(name: str, data_dir: Path | None) -> Dataset:
    return load_dataset(name, data_dir)


@functools.lru_cache(64)
def _drawn(
    name: str,
    data_dir: Path | None,
    partition: str,
    setting: str,
    clients: int,
    seed: int,
    samples: int | None,
) -> Scenario:
    dataset = stage(_dataset(name, data_dir), setting, data_dir)
    return generate(dataset, partition, setting, clients, seed, samples)


def _compare(facts: ScenarioFacts, scenario: Scenario) -> None:
    if facts.fingerprint != scenario.fingerprint:
        raise ValueError(
            f"its scenario is {facts.fingerprint}, but its configuration gives {scenario.fingerprint}"
        )
    ratio = scenario.overall if scenario.truth_known else None
    same = ratio == facts.noise_ratio or math.isclose(ratio or 0, facts.noise_ratio or 0, rel_tol=1e-9)
    if facts.samples != sum(scenario.sizes) or not same:
        raise ValueError(
            f"its scenario has {facts.samples} samples and the noise ratio {facts.noise_ratio}, but its "
            f"configuration gives {sum(scenario.sizes)} and {ratio}"
        )


def _compare_beliefs(beliefs: Mapping[str, np.ndarray], scenario: Scenario) -> None:
    """Compare all arrays that the scenario decides."""
    seen = np.unique(beliefs.get("client", np.empty(0, np.int64))).tolist()
    if not all(0 <= client < len(scenario.clients) for client in seen):
        raise ValueError("beliefs.npz has clients that its scenario lacks")
    expected = belief_arrays({int(client): Beliefs() for client in seen}, scenario)
    for name in expected.keys() - {*OF_METHOD}:
        if name not in beliefs or not _equal(beliefs[name], expected[name]):
            raise ValueError(f"{name} in beliefs.npz is not that of its scenario")
    if not scenario.truth_known and "true" in beliefs:
        raise ValueError("beliefs.npz has true labels, which the data set lacks")


def _equal(theirs: np.ndarray, ours: np.ndarray) -> bool:
    if theirs.shape != ours.shape or ours.dtype.kind != "f":
        return np.array_equal(theirs, ours)
    return bool(np.allclose(theirs.astype(np.float64), ours, rtol=1e-9, atol=0, equal_nan=True))
