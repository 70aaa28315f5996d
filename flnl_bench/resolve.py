"""From what a user asks for to a run that can be played: every name checked, every value resolved."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.config import RunConfig, Training
from flnl_bench.data import Dataset, load_dataset
from flnl_bench.errors import unknown
from flnl_bench.presets import load_preset
from flnl_bench.registry import Registry, default_registry, values_of
from flnl_bench.scenario import Scenario, check_dataset, load_scenario, make_scenario, parse_partition, parse_setting

if TYPE_CHECKING:
    from flnl_bench.runner import Run


@dataclass(frozen=True)
class Request:
    """What the user asked for; the rest comes from the preset."""

    method: str
    setting: str = "sym-1.0"
    dataset: str = "digits"
    partition: str = "iid"
    preset: str = "quick"
    seed: int = 1
    device: str = "auto"
    training: Mapping[str, Any] = field(default_factory=dict)  # changes of the protocol, e.g. rounds
    changes: Mapping[str, str] = field(default_factory=dict)  # changes of hyper-parameters, as text
    scenario: Path | None = None  # use this exported scenario
    data_dir: Path | None = None
    out: Path = Path("results/runs")


@functools.lru_cache(maxsize=1)
def _dataset(name: str, data_dir: Path | None) -> Dataset:
    return load_dataset(name, data_dir)


def prepare(request: Request, registry: Registry | None = None) -> Run:
    """Check the request, load the data, make the scenario and the method."""
    from flnl_bench.engine.engine import choose_device
    from flnl_bench.runner import Run

    registry = registry or default_registry()
    preset = load_preset(request.preset)
    given = load_scenario(request.scenario) if request.scenario else None
    dataset_name = given.dataset if given else request.dataset
    base = registry.method_class(request.method).name
    method = registry.make(request.method, preset.hyperparameters(dataset_name, base), request.changes)
    device = choose_device(request.device)
    if given:
        training = preset.training(dataset_name, **request.training, clients=len(given.clients), samples=given.samples)
        dataset = _dataset(dataset_name, request.data_dir)
        check_dataset(given, dataset)
        scenario = given
    else:
        setting, partition = parse_setting(request.setting), parse_partition(request.partition)
        training = preset.training(dataset_name, **request.training)
        dataset = _dataset(dataset_name, request.data_dir)
        scenario = generate(dataset, partition.name, setting.name, training.clients, request.seed, training.samples)
    config = RunConfig(
        method=request.method,
        dataset=scenario.dataset,
        partition=scenario.partition,
        setting=scenario.setting,
        preset=request.preset,
        seed=request.seed,
        device=device.type,
        training=training,
        hyperparameters=values_of(method),
        scenario=scenario.fingerprint if given else None,
    )
    _check_network(training)
    return Run(config, method, dataset, scenario, request.out)


def _check_network(training: Training) -> None:
    """Refuse an unknown network before anything is written."""
    from flnl_bench.models import MODELS
    from flnl_bench.models.layers import NORMS

    if training.model not in MODELS:
        raise unknown("model", training.model, MODELS)
    if training.norm not in NORMS:
        raise unknown("norm", training.norm, NORMS)


def generate(
    dataset: Dataset, partition: str, setting: str, clients: int, seed: int, samples: int | None
) -> Scenario:
    """The scenario of a protocol; a preset's subset is not larger than the data set."""
    if samples is not None and samples >= len(dataset.train_y):
        samples = None
    return make_scenario(dataset, partition=partition, setting=setting, clients=clients, seed=seed, samples=samples)
