"""Cost of the commands that read many runs, made in a temporary folder.

    python -m benchmarks.speed.many_runs --runs 2000 20000 --rounds 175

Each command is a process of its own. The unit is the CPU time of parsing all `run.json` and the last lines of
all `rounds.jsonl`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.speed.measuring import Table
from flnl_bench.config import NUMBERS_VERSION, RunConfig
from flnl_bench.leaderboards.comparability import SETTINGS
from flnl_bench.method_facts import facts_of
from flnl_bench.methods import declarations
from flnl_bench.results.run_folder import rounds_text
from flnl_bench.results.run_record import (
    COSTS,
    COUNTS,
    LAST,
    ROUNDS_FILE,
    RUN_FILE,
    RoundRow,
    RunRecord,
    ScenarioFacts,
    Summary,
    read_last_rounds,
    summarise,
)
from flnl_bench.running.presets import load_preset

METHODS = [name for name, declared in declarations().items() if declared.place < math.inf]
DATASETS, PARTITIONS = ("digits", "cifar10"), ("iid", "dir-0.3")
CURVES = 64  # different ones; the runs share them
COMMANDS = {
    "list runs": "list runs --runs {runs} --json",
    "leaderboard": "leaderboard {runs} --against fedavg",
    "leaderboard by memorised": "leaderboard {runs} --metric memorised",
    "leaderboard at a budget": "leaderboard {runs} --at rounds=20",
    "report": "report {runs} -o {out}/site",
    "results export": "results export {runs} -o {out}/runs.zip",
}
MB = 1 << 20


def configurations(count: int, rounds: int) -> Iterator[RunConfig]:
    """Yield configurations of all methods and settings, seed after seed."""
    preset, values = load_preset("quick"), {}
    for name in METHODS:  # without torch: a process would have the peak memory of this one
        defaults = {key: about["default"] for key, about in facts_of(name)["hyperparameters"].items()}
        values[name] = {**defaults, **facts_of(name.partition("/")[0])["variants"].get(name, {})}
    training = {name: preset.training(name, rounds=rounds) for name in DATASETS}
    rows = list(itertools.product(METHODS, SETTINGS, DATASETS, PARTITIONS))
    for number in range(count):
        method, setting, dataset, partition = rows[number % len(rows)]
        place, seed = (method, dataset, partition, setting, "quick"), 1 + number // len(rows)
        yield RunConfig(*place, seed, "cpu", training[dataset], values[method])


def curve(rounds: int, draws: random.Random) -> list[RoundRow]:
    """Return rounds with costs, counts and diagnostics as FedGR writes them."""
    sent = {"n_k": {"per": "client", "messages": 2, "units": 2, "numbers": 2, "bytes": 16}}
    counts = {**dict.fromkeys(COUNTS, 1), "sent": sent}
    names = ("memorised", "accuracy_clean", "accuracy_wrong", "sieve_precision", "sieve_recall")
    return [
        {
            "round": number,
            "accuracy": draws.uniform(10, 90),
            "loss": draws.random(),
            "train_loss": draws.random(),
            "clients": draws.sample(range(35), 10),
            **dict.fromkeys(COSTS, 1000),
            "seconds": draws.random(),
            "counts": counts,
            "method": {},
            "diagnostics": {name: draws.uniform(0, 100) for name in names},
        }
        for number in range(rounds)
    ]


def write_runs(out: Path, count: int, rounds: int) -> None:
    """Write finished runs with their rounds and without beliefs."""
    draws = random.Random(0)
    curves = [curve(rounds, draws) for _ in range(CURVES)]
    known = [(rounds_text(rows), summarise(rows)) for rows in curves]
    for number, config in enumerate(configurations(count, rounds)):
        text, summary = known[number % CURVES]
        folder = out / config.place
        folder.mkdir(parents=True)
        (folder / ROUNDS_FILE).write_text(text)
        (folder / RUN_FILE).write_text(_record(config, summary).text())


def _record(config: RunConfig, summary: Summary) -> RunRecord:
    scenario = f"{config.dataset} {config.partition} {config.setting} {config.seed}"
    return RunRecord(
        status="done",
        config=config,
        scenario=ScenarioFacts(scenario, config.training.clients, 1000),
        provenance={"numbers": NUMBERS_VERSION, "code": {"method": config.method}},
        changed={},
        summary=summary,
    )


def measured(command: str, folders: dict[str, Path]) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MiB of a command in a process of its own."""
    words = [word.format(**folders) for word in command.split()]
    code = "from flnl_bench.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or "not counted" in errors:
        raise SystemExit(f"{command}: {errors}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MB


def parsing(runs: Path) -> float:
    """Return the CPU seconds of parsing the records and last rounds of all runs."""
    begin = time.process_time()
    for file in runs.rglob(RUN_FILE):
        json.loads(file.read_bytes())
        read_last_rounds(file.parent, LAST)
    return time.process_time() - begin


def main() -> None:
    """Make the runs and measure each command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[2000])
    parser.add_argument("--rounds", type=int, default=175)
    parser.add_argument("--command", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    table = Table("CPU time in units of parsing the runs, and peak memory in MiB")
    for count in options.runs:
        with tempfile.TemporaryDirectory() as name:
            folders = {"runs": Path(name, "runs"), "out": Path(name)}
            write_runs(folders["runs"], count, options.rounds)
            unit = parsing(folders["runs"])
            for command in options.command:
                seconds, memory = measured(COMMANDS[command], folders)
                table.add(command=command, runs=count, time=seconds / unit, memory=memory)
    Console().print(table.printed())


if __name__ == "__main__":
    main()
