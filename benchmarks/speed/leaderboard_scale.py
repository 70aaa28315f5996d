"""Time of the leaderboard for many runs, made in a temporary folder.

    python -m benchmarks.speed.leaderboard_scale --runs 5000

The time is that of `flnl-bench leaderboard` as a process, with start and statistics; two calls show how much
it varies.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flnl_bench.config import NUMBERS_VERSION, RunConfig
from flnl_bench.leaderboards.comparability import SETTINGS
from flnl_bench.methods import declarations, default_methods, values_of
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import COSTS, COUNTS, RoundRow, RunRecord, ScenarioFacts, summarise
from flnl_bench.running.presets import load_preset

METHODS = [name for name, declared in declarations().items() if declared.place < math.inf]
DATASETS, PARTITIONS = ("digits", "cifar10"), ("iid", "dir-0.3")
SENT = {"n_k": {"per": "client", "messages": 2, "units": 2, "numbers": 2, "bytes": 16}}
ROUND: RoundRow = {
    **dict.fromkeys(("loss", "train_loss", "seconds", *COSTS), 1),
    "counts": {**dict.fromkeys(COUNTS, 1), "sent": SENT},
}
COMMAND = (
    sys.executable,
    "-c",
    "from flnl_bench.cli import main; main()",
    "leaderboard",
    "--against",
    "fedavg",
)


def configurations(count: int) -> list[RunConfig]:
    """Return configurations of all methods and settings, seed after seed."""
    registry, preset = default_methods(), load_preset("quick")
    values = {name: values_of(registry.make(name, {}, {})) for name in METHODS}
    training = {name: preset.training(name) for name in DATASETS}
    rows = list(itertools.product(METHODS, SETTINGS, DATASETS, PARTITIONS))
    configs = []
    for number in range(count):
        method, setting, dataset, partition = rows[number % len(rows)]
        place, seed = (method, dataset, partition, setting, "quick"), 1 + number // len(rows)
        configs.append(RunConfig(*place, seed, "cpu", training[dataset], values[method]))
    return configs


def write(out: Path, config: RunConfig) -> Path:
    """Write a finished run without its rounds, which the leaderboard does not read; return its folder."""
    accuracy = random.uniform(10, 90)
    scenario = f"{config.dataset} {config.partition} {config.setting} {config.seed}"
    folder = RunFolder(out / config.place)
    folder.create()
    folder.write(
        RunRecord(
            status="done",
            config=config,
            scenario=ScenarioFacts(scenario, config.training.clients, 1000),
            provenance={"numbers": NUMBERS_VERSION, "code": {"method": config.method}},
            changed={},
            summary=summarise([{**ROUND, "accuracy": accuracy}] * config.training.rounds),
        )
    )
    return folder.path


def timed(folder: Path) -> tuple[float, float]:
    """Return seconds of the command on the clock and of the processor."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([*COMMAND, folder], check=True, capture_output=True)
    clock, after = time.perf_counter() - begin, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return clock, used


def main() -> None:
    """Make the runs and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for config in configurations(options.runs):
            write(Path(name), config)
        for call in ("first", "second"):
            clock, used = timed(Path(name))
            print(f"{options.runs} runs, {call} call: {clock:.1f} s, {used:.1f} s of the processor")


if __name__ == "__main__":
    main()
