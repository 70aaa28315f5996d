"""How long the leaderboard takes for many runs, made in a temporary folder.

    python -m benchmarks.speed.leaderboard_scale --runs 5000

The time is that of `flnl-bench leaderboard` as a process of its own, with start and statistics; two
calls show how far it can be trusted.
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
from flnl_bench.declarations import declarations
from flnl_bench.leaderboards.comparability import SETTINGS
from flnl_bench.methods import default_methods, values_of
from flnl_bench.results.run_folder import RunFolder, run_folder
from flnl_bench.results.run_record import COSTS, RunRecord, ScenarioFacts, summarise
from flnl_bench.running.presets import load_preset

METHODS = [name for name, declared in declarations().items() if declared.place < math.inf]
DATASETS, PARTITIONS = ("digits", "cifar10"), ("iid", "dir-0.3")
ROUND = dict.fromkeys(("seconds", *COSTS), 1)
COMMAND = (
    sys.executable,
    "-c",
    "from flnl_bench.cli import main; main()",
    "leaderboard",
    "--against",
    "fedavg",
)


def configurations(count: int) -> list[RunConfig]:
    """Seed after seed of all methods and settings, until there are enough."""
    registry, preset = default_methods(), load_preset("quick")
    values = {name: values_of(registry.make(name, {}, {})) for name in METHODS}
    training = {name: preset.training(name) for name in DATASETS}
    rows = list(itertools.product(METHODS, SETTINGS, DATASETS, PARTITIONS))
    made = []
    for number in range(count):
        method, setting, dataset, partition = rows[number % len(rows)]
        place, seed = (method, dataset, partition, setting, "quick"), 1 + number // len(rows)
        made.append(RunConfig(*place, seed, "cpu", training[dataset], values[method]))
    return made


def write(out: Path, config: RunConfig) -> Path:
    """A finished run as the runner leaves it, without its rounds: the leaderboard does not read them."""
    accuracy = random.uniform(10, 90)
    scenario = f"{config.dataset} {config.partition} {config.setting} {config.seed}"
    folder = RunFolder(run_folder(out, config))
    folder.create()
    folder.write(
        RunRecord(
            status="done",
            config=config,
            scenario=ScenarioFacts(scenario),
            provenance={"numbers": NUMBERS_VERSION, "method": {"source": config.method}},
            changed={},
            summary=summarise([{**ROUND, "accuracy": accuracy}] * config.training.rounds),
        )
    )
    return folder.path


def timed(folder: Path) -> tuple[float, float]:
    """Seconds of the command on the clock and of the processor; what else is running counts for the first."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([*COMMAND, folder], check=True, capture_output=True)
    clock, after = time.perf_counter() - begin, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return clock, used


def main() -> None:
    """Make the runs and print what they took."""
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
