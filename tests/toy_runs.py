"""Runners of the toy world: a run of less than a second, without the command line."""

from __future__ import annotations

import dataclasses

from flnl_methods.fedavg import FedAvg

from flnl_bench.config import RunConfig
from flnl_bench.methods import values_of
from flnl_bench.running.options import RunOptions
from flnl_bench.running.runner import Runner
from flnl_bench.testing import CPU_ONLY, TOY_TRAINING, toy_dataset, toy_scenario


def toy_config(method=None, rounds=3, **changes) -> RunConfig:
    """The configuration of a run of the toy world; FedAvg unless given."""
    method = method or FedAvg()
    config = RunConfig(
        method=method.name,
        dataset="toy",
        partition="iid",
        setting="sym-0.5",
        preset="quick",
        seed=1,
        device="cpu",
        training=dataclasses.replace(TOY_TRAINING, rounds=rounds, epochs=1),
        hyperparameters=values_of(method),
    )
    return dataclasses.replace(config, **changes)


def toy_runner(out, method=None, scenario=None, **changes) -> Runner:
    """A runner that writes below `out`; `changes` are of its configuration."""
    method = method or FedAvg()
    return Runner(
        options=RunOptions(method.name, out=out),
        config=toy_config(method, **changes),
        method=method,
        dataset=toy_dataset(),
        scenario=scenario or toy_scenario(),
        devices=CPU_ONLY,
        changed={},
    )
