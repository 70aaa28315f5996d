"""Measures the engine: rates, stacks, passes, counts, memory, growth, workers, start, profile.

    python -m benchmarks.speed
    python -m benchmarks.speed --part rates --model resnet8 --repeats 9
    python -m benchmarks.speed --part passes --model tiny-cnn --method fedgr fedcorr
    python -m benchmarks.speed --part workers --workers 2 4 --json

One process with one thread measures, loops take turns, and the shortest of several repetitions counts;
figures of different invocations should not be compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

from rich.console import Console

from benchmarks.speed.counts import counts
from benchmarks.speed.growth import growth, long_runs, pools
from benchmarks.speed.measuring import Table
from benchmarks.speed.memory import client_memory, loop_memory, round_memory
from benchmarks.speed.passes import METHODS, passes
from benchmarks.speed.profile import profile_round
from benchmarks.speed.rates import rates, stacks
from benchmarks.speed.start import start
from flnl_bench.testing.worlds import SIZES

PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Table]]] = {
    "rates": lambda o: iter([rates(o.model, o.repeats)]),
    "stacks": lambda o: iter([stacks(o.model, o.method, o.repeats)]),
    "passes": lambda o: passes(o.model, o.method, o.repeats),
    "counts": lambda o: iter([counts(o.model)]),
    "memory": lambda o: (table(o.model) for table in (loop_memory, client_memory, round_memory)),
    "growth": lambda o: (table(o.repeats) for table in (growth, long_runs)),
    "workers": lambda o: iter([pools(o.model, o.workers, o.repeats)]),
    "start": lambda o: iter([start(o.repeats)]),
    "profile": lambda o: iter([profile_round()]),
}


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--model", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--method", nargs="+", default=METHODS, help="for passes and stacks")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of which the shortest counts")
    parser.add_argument("--workers", nargs="+", type=int, default=[2], help="numbers of worker processes")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments, console = options(), Console()
    measured = {}
    for part in arguments.part:
        for table in PARTS[part](arguments):
            measured[table.title] = table.rows
            if not arguments.json:
                console.print(table.printed())
    if arguments.json:
        print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
