"""Scenarios: partition, label noise and the files that hold them."""

from __future__ import annotations

from flnl_bench.scenario.describe import describe, summarise
from flnl_bench.scenario.make import make_scenario
from flnl_bench.scenario.partition import PARTITIONS, Partition, parse_partition
from flnl_bench.scenario.scenario import Scenario
from flnl_bench.scenario.settings import SETTINGS, Setting, parse_setting
from flnl_bench.scenario.store import check_dataset, load_scenario, save_scenario

__all__ = [
    "PARTITIONS",
    "SETTINGS",
    "Partition",
    "Scenario",
    "Setting",
    "check_dataset",
    "describe",
    "load_scenario",
    "make_scenario",
    "parse_partition",
    "parse_setting",
    "save_scenario",
    "summarise",
]
