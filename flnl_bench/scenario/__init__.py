"""Scenarios: which client holds which images, with which wrong labels."""

from __future__ import annotations

from flnl_bench.scenario.class_spread import class_table, effective_holders, scarce_chance
from flnl_bench.scenario.noise import NOISES, parse_setting
from flnl_bench.scenario.options import Option
from flnl_bench.scenario.partition import PARTITIONS, Parameter, Partition, PartitionKind, parse_partition
from flnl_bench.scenario.scenario import (
    Scenario,
    client_table,
    draw_scenario,
    dress,
    generate,
    scenario_summary,
    stage,
)
from flnl_bench.scenario.scenario_file import check_dataset, load_scenario, save_scenario
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, Setting

__all__ = [
    "NOISES",
    "PARTITIONS",
    "NoiseKind",
    "NoisyClient",
    "Option",
    "Parameter",
    "Partition",
    "PartitionKind",
    "Scenario",
    "Setting",
    "check_dataset",
    "class_table",
    "client_table",
    "draw_scenario",
    "dress",
    "effective_holders",
    "generate",
    "load_scenario",
    "parse_partition",
    "parse_setting",
    "save_scenario",
    "scarce_chance",
    "scenario_summary",
    "stage",
]
