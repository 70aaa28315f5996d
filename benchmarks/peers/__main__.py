"""Measures the engine next to other programs for federated learning, which it does not download.

    python -m benchmarks.peers --fedcorr PATH --fnbench PATH --fednoisy PATH --pfl PATH --blazefl PATH
    python -m benchmarks.peers --pfl PATH --flower --python pfl=ENV/bin/python flower=ENV/bin/python --json

A path is that of a checked-out repository (of BlazeFL its folder src); Flower is taken from its environment.
All loops do the work in loops/workload.py: the same network (LeNet-5), clients, images, batches, augmentation
and test. Each runs with one thread in a process of its own, `python serve.py MODULE PATH`; a peer that needs
another environment gets its Python by --python. The loops take turns, and the shortest of several repetitions
counts. The clock is the CPU time of the process and of all processes that it started.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.speed.measuring import Table

LOOPS = Path(__file__).parent / "loops"
OURS = ("ours", "ours_plain", "ours_workers")
PEERS = {  # loop → the option with its path
    "fedcorr": "fedcorr",
    "fnbench": "fnbench",
    "fednoisy": "fednoisy",
    "pfl": "pfl",
    "pfl_augmented": "pfl",
    "blazefl": "blazefl",
    "flower": "flower",
}
UNLIKE = {"pfl": "ours_plain"}  # loops without augmentation, and what they are compared with


class Server:
    """A loop in a process of its own."""

    def __init__(self, name: str, python: str, path: str) -> None:
        self.name, self.command = name, [python, str(LOOPS / "serve.py"), f"run_{name}", path]
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.best: dict[str, float] = {}
        self.peak = 0

    def ask(self, command: str) -> bool:
        """Run `train` or `round` and note its answer; return whether there was one."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        line = self.process.stdout.readline()
        if not line:
            return False
        answer: dict[str, Any] = json.loads(line)
        self.best[command] = min(self.best.get(command, float("inf")), answer["seconds"])
        self.peak = max(self.peak, answer["peak"])
        return True

    def stop(self) -> None:
        """End the process."""
        self.process.communicate()


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("fedcorr", "fnbench", "fednoisy", "pfl", "blazefl"):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH")
    parser.add_argument("--flower", action="store_const", const="-")
    parser.add_argument("--python", nargs="*", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of which the shortest counts")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def measured(arguments: argparse.Namespace) -> list[Server]:
    """Let the loops take turns; one that fails is left out, with its command."""
    pythons = dict(pair.split("=", 1) for pair in arguments.python)
    loops = [Server(name, sys.executable, "-") for name in OURS]
    for name, option in PEERS.items():
        if path := getattr(arguments, option):
            place = "-" if path == "-" else str(path.resolve())
            loops.append(Server(name, pythons.get(option, sys.executable), place))
    try:
        for _ in range(arguments.repeats):
            for command in ("train", "round"):
                loops = [loop for loop in loops if answers(loop, command)]
    finally:
        for loop in loops:
            loop.stop()
    return loops


def answers(loop: Server, command: str) -> bool:
    """Ask a loop; report one that does not answer."""
    answered = loop.ask(command)
    if not answered:
        print(f"{loop.name} failed; its command is {' '.join(loop.command)}", file=sys.stderr)
    return answered


def main() -> None:
    """Measure and print."""
    arguments = options()
    loops = {loop.name: loop for loop in measured(arguments)}
    table = Table("CPU time in units of ours (local training, whole rounds) and peak memory against ours")
    for name, loop in loops.items():
        ours = loops[UNLIKE.get(name, "ours")]
        table.add(
            loop=name,
            against=ours.name,
            training=loop.best["train"] / ours.best["train"],
            round=loop.best["round"] / ours.best["round"],
            memory=loop.peak / ours.peak,
        )
    if arguments.json:
        print(json.dumps({table.title: table.rows}, indent=2))
    else:
        Console().print(table.printed())


if __name__ == "__main__":
    main()
