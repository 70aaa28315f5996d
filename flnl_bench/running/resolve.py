"""From what a user asks for to a run that can be played: every name checked, every value resolved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.config import RunConfig, Training, sampled_clients
from flnl_bench.data import Dataset, LoadProgress, dataset_name, find_dataset, load_dataset
from flnl_bench.errors import BadInput, require
from flnl_bench.methods import Methods, default_methods, values_of
from flnl_bench.models import find_model
from flnl_bench.running.presets import Preset, load_preset
from flnl_bench.scenario import (
    Scenario,
    check_dataset,
    draw_scenario,
    dress,
    load_scenario,
    parse_partition,
    parse_setting,
    stage,
)
from flnl_bench.trackers import find_tracker

if TYPE_CHECKING:
    from flnl_bench.api import Method
    from flnl_bench.running.runner import Run


SCENARIO_OPTIONS = ("setting", "dataset", "partition", "clients", "samples")


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
    devices: tuple[str, ...] = ()  # of worker processes, as cuda:0; changes no number
    workers: int | None = None  # worker processes; changes no number
    training: Mapping[str, Any] = field(default_factory=dict)  # changes of the protocol, e.g. rounds
    changes: Mapping[str, str] = field(default_factory=dict)  # changes of hyper-parameters, as text
    scenario: Path | None = None  # use this exported scenario
    data_dir: Path | None = None
    out: Path = Path("results/runs")
    label: str | None = None  # what a suite calls it; changes no number
    tracker: tuple[str, ...] = ()
    save_model: bool = False  # keep the final and the best global weights


def check_source(given: Mapping[str, object], dashes: str = "") -> None:
    """A scenario comes from a file or from its options, not from both; the setting is never guessed.

    Args:
        given: options of a run by name; what is not given is None or missing.
        dashes: what the user writes before a name.
    """
    own = [dashes + name for name in SCENARIO_OPTIONS if given.get(name) is not None]
    if given.get("scenario") is not None and own:
        raise BadInput(f"{dashes}scenario fixes the federation: leave out {', '.join(own)}")
    if given.get("scenario") is None and given.get("setting") is None:
        option = f"{dashes}setting"
        raise BadInput(
            f"missing option {option}, as in {option} sym-1.0 (`flnl-bench list settings` shows all)"
        )


_latest: dict[tuple[object, ...], Dataset] = {}  # at most one: the data set of the run before


def cached_dataset(name: str, data_dir: Path | None, progress: LoadProgress | None = None) -> Dataset:
    """A data set; the latest stays in memory for the next run, unless its own files have changed."""
    path = Path(name.partition(":")[2])
    files = [path, *path.rglob("*")] if ":" in name else []
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
    key = (name, data_dir, tuple(stamps))
    if key not in _latest:
        _latest.clear()
        _latest[key] = load_dataset(name, data_dir, progress)
    return _latest[key]


def configure(
    request: Request,
    registry: Methods | None = None,
    given: Scenario | None = None,
    device: str | None = None,
) -> tuple[RunConfig, Method]:
    """The configuration of a run, which names its folder, and the method; no data are read.

    Args:
        request: what the user asked for.
        registry: where methods are found.
        given: the imported scenario of the request, if it has one.
        device: the kind of device that the run will find elsewhere; else chosen on this machine.
    """
    from flnl_bench.engine.devices import choose_devices

    registry = registry or default_methods()
    preset = load_preset(request.preset)
    dataset = given.dataset if given else dataset_name(request.dataset)
    base = registry.method_class(request.method).name
    method = registry.make(request.method, preset.hyperparameters(dataset, base), request.changes)
    device = device or choose_devices(request.device, request.devices, request.workers).server.type
    fixed = {"clients": len(given.clients), "samples": given.samples} if given else {}
    training = protocol(preset, dataset, {**request.training, **fixed})
    find_model(training.model, training.norm, training.pretrained)  # refused before anything is written
    if training.samples is not None and not given:
        parse_partition(request.partition).check(training.samples, training.clients)
    config = RunConfig(
        method=request.method,
        dataset=dataset,
        partition=given.partition if given else parse_partition(request.partition).name,
        setting=given.setting if given else parse_setting(request.setting).name,
        preset=preset.name,
        seed=request.seed,
        device=device,
        training=training,
        hyperparameters=values_of(method),
        scenario=given.fingerprint if given else None,
        version=method.version,
    )
    return config, method


def protocol(preset: Preset, dataset: str, changes: Mapping[str, Any]) -> Training:
    """The protocol for a data set, with what is changed.

    A data set that the preset does not know may name its network itself; for the leaderboard, which knows
    no plugins, that is a change of the preset.
    """
    model = None if preset.knows(dataset) else find_dataset(dataset).model
    return preset.training(dataset, **{**({"model": model} if model else {}), **changes})


def changed_values(
    method: str, dataset: str, preset: str, values: Mapping[str, Any], registry: Methods | None = None
) -> dict[str, Any]:
    """The hyper-parameters that are not as the preset and the variant have them; a missing one is."""
    registry = registry or default_methods()
    given = load_preset(preset).hyperparameters(dataset, registry.method_class(method).name)
    plain = values_of(registry.make(method, given, {}))
    return {k: v for k, v in values.items() if k not in plain or plain[k] != v}


def prepare(request: Request, registry: Methods | None = None, progress: LoadProgress | None = None) -> Run:
    """Check the request, load the data, make the scenario and the method.

    Args:
        request: what the user asked for.
        registry: where methods are found.
        progress: called as (what, done, total) while a large data set is decoded.
    """
    from flnl_bench.engine.devices import check_float32, check_precision, choose_devices
    from flnl_bench.running.runner import Run

    check_float32()
    for name in request.tracker:
        find_tracker(name)
    given = load_scenario(request.scenario) if request.scenario else None
    config, method = configure(request, registry, given)
    check_precision(config.device, config.training.precision)
    dataset = cached_dataset(config.dataset, request.data_dir, progress)
    dataset = stage(dataset, config.setting, request.data_dir, progress)
    if given:
        check_dataset(given, dataset)
    scenario = given or federate(request, config, dataset)
    changed = changed_values(config.method, config.dataset, request.preset, config.hyperparameters, registry)
    clients = len(scenario.clients)
    # Some methods visit all clients at once: there, more workers than a round has clients have work.
    most = min(clients, max(sampled_clients(config.training.fraction, clients), os.cpu_count() or 1))
    devices = choose_devices(request.device, request.devices, request.workers, most)
    return Run(
        config,
        method,
        dress(dataset, scenario),
        scenario,
        request.out,
        devices,
        changed,
        request.label,
        trackers=request.tracker,
        save_model=request.save_model,
    )


def federate(request: Request, config: RunConfig, dataset: Dataset) -> Scenario:
    """The scenario of a run that brings none."""
    training, asked = config.training, request.training.get("samples")
    dataset = stage(dataset, config.setting, request.data_dir)
    return generate(
        dataset, config.partition, config.setting, training.clients, config.seed, training.samples, asked
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
    """The scenario of a protocol; only a preset's subset, not one that is asked for, may exceed the data."""
    most = len(dataset.train_y)
    require((asked or 0) <= most, "samples", asked, f"at most {most}, the train images of {dataset.name}")
    if samples is not None and samples >= most:
        samples = None
    parse_partition(partition).check(samples or most, clients)
    return draw_scenario(
        dataset, partition=partition, setting=setting, clients=clients, seed=seed, samples=samples
    )
