"""Make a configuration, and a run that can start, from options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.config import RunConfig, Training
from flnl_bench.data import Dataset, LoadProgress, dataset_name, find_dataset, load_dataset
from flnl_bench.methods import default_methods, values_of
from flnl_bench.models import find_model
from flnl_bench.running.options import RunOptions
from flnl_bench.running.presets import Preset, load_preset
from flnl_bench.scenario import (
    Scenario,
    check_dataset,
    dress,
    generate,
    load_scenario,
    parse_partition,
    parse_setting,
    stage,
)
from flnl_bench.trackers import find_tracker

if TYPE_CHECKING:
    from flnl_bench.api import Method
    from flnl_bench.running.runner import Runner


_latest: dict[tuple[object, ...], Dataset] = {}  # at most one: the data set of the previous run


def cached_dataset(name: str, data_dir: Path | None, progress: LoadProgress | None = None) -> Dataset:
    """Load a data set; the latest one is kept in memory."""
    key = (name, data_dir)
    if key not in _latest:
        _latest.clear()
        _latest[key] = load_dataset(name, data_dir, progress)
    return _latest[key]


def make_config(
    options: RunOptions,
    given: Scenario | None = None,
    device: str | None = None,
) -> tuple[RunConfig, Method]:
    """Return the configuration of a run and its method; no data are read.

    Args:
        options: of the run.
        given: the scenario of the options' scenario file.
        device: the kind of device of another machine; by default, that of this machine.
    """
    from flnl_bench.engine.devices import choose_devices

    registry, preset = default_methods(), load_preset(options.preset)
    dataset = given.dataset if given else dataset_name(options.dataset)
    base = registry.method_class(options.method).name
    method = registry.make(options.method, preset.hyperparameters(dataset, base), options.changes)
    device = device or choose_devices(options.device, options.devices, options.workers).server.type
    fixed = {"clients": len(given.clients), "samples": given.samples} if given else {}
    training = protocol(preset, dataset, {**options.training, **fixed})
    find_model(training.model, training.norm, training.pretrained)  # checks it
    if training.samples is not None and not given:
        parse_partition(options.partition).check(training.samples, training.clients)
    config = RunConfig(
        method=options.method,
        dataset=dataset,
        partition=given.partition if given else parse_partition(options.partition).name,
        setting=given.setting if given else parse_setting(options.setting).name,
        preset=preset.name,
        seed=options.seed,
        device=device,
        training=training,
        hyperparameters=values_of(method),
        scenario=given.fingerprint if given else None,
        version=method.version,
    )
    return config, method


def protocol(preset: Preset, dataset: str, changes: Mapping[str, Any]) -> Training:
    """Return the protocol for a data set, with changes.

    A data set without a section in the preset may name its network itself. The leaderboard, which has no
    plugins, shows that as a change of the preset.
    """
    model = None if preset.knows(dataset) else find_dataset(dataset).model
    return preset.training(dataset, **{**({"model": model} if model else {}), **changes})


def changed_values(config: RunConfig, preset: str) -> dict[str, Any]:
    """Return the hyper-parameters that differ from those of the preset and the variant."""
    registry = default_methods()
    given = load_preset(preset).hyperparameters(config.dataset, registry.method_class(config.method).name)
    plain = values_of(registry.make(config.method, given, {}))
    return {k: v for k, v in config.hyperparameters.items() if k not in plain or plain[k] != v}


def prepare(options: RunOptions, progress: LoadProgress | None = None) -> Runner:
    """Check the options, load the data, draw the scenario and make the method; nothing is written."""
    from flnl_bench.engine.devices import check_float32, check_precision, choose_devices
    from flnl_bench.running.runner import Runner

    check_float32()
    for name in options.tracker:
        find_tracker(name)
    given = load_scenario(options.scenario) if options.scenario else None
    config, method = make_config(options, given)
    check_precision(config.device, config.training.precision)
    dataset = cached_dataset(config.dataset, options.data_dir, progress)
    dataset = stage(dataset, config.setting, options.data_dir, progress)
    if given:
        check_dataset(given, dataset)
    scenario = given or federate(options, config, dataset)
    clients = len(scenario.clients)
    # Some methods visit all clients at once, so they can use more workers than a round has clients.
    most = min(clients, max(config.training.sampled_clients, os.cpu_count() or 1))
    return Runner(
        options=options,
        config=config,
        method=method,
        dataset=dress(dataset, scenario),
        scenario=scenario,
        devices=dataclasses.replace(
            choose_devices(options.device, options.devices, options.workers, most), state=options.state
        ),
        changed=changed_values(config, options.preset),
    )


def federate(options: RunOptions, config: RunConfig, dataset: Dataset) -> Scenario:
    """Draw the scenario of a run."""
    training, asked = config.training, options.training.get("samples")
    dataset = stage(dataset, config.setting, options.data_dir)
    return generate(
        dataset, config.partition, config.setting, training.clients, config.seed, training.samples, asked
    )
