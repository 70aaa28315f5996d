"""How the cost of a round grows: with sampled clients, samples, all clients, rounds before and workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Semaphore, Thread
from typing import Any, Self
from unittest.mock import patch

from benchmarks.speed.loops import start
from benchmarks.speed.measuring import Table, best_seconds
from benchmarks.speed.memory import alone
from flnl_bench.config import RunConfig
from flnl_bench.engine.checkpoint import Checkpoint, Name
from flnl_bench.engine.devices import choose_devices
from flnl_bench.methods import default_methods, values_of
from flnl_bench.running.options import RunOptions
from flnl_bench.running.runner import Runner
from flnl_bench.testing.worlds import World, make_world, random_images, rate_world

BASE = {"sampled": 10, "samples": 64, "clients": 100}  # samples of each client
FACTORS = {"sampled": (2, 4, 8), "samples": (2, 4, 8)}


def federation(sampled: int, samples: int, clients: int) -> World:
    """A tiny network and tiny images, so that whatever is not computing shows."""
    dataset = random_images(samples * clients, 1, 8)
    return make_world(dataset, "tiny-cnn", clients, epochs=1, fraction=sampled / clients)


def growth(repeats: int) -> Table:
    """Every case against the base case, interleaved."""
    table = Table("Growth: CPU time of a FedAvg round in rounds of the base case")
    cases = [(name, factor) for name, factors in FACTORS.items() for factor in factors]
    worlds = [federation(**BASE | {name: BASE[name] * factor}) for name, factor in cases]
    engines = [start(world) for world in (federation(**BASE), *worlds)]
    base, *others = best_seconds([engine.run_round for engine in engines], repeats)
    for (name, factor), seconds in zip(cases, others, strict=True):
        table.add(what=name, base=BASE[name], value=BASE[name] * factor, factor=factor, cost=seconds / base)
    return table


# -- recorded rounds: all that `flnl-bench run` does -------------------------------------------------
class RecordedRun:
    """A run that records its rounds in a folder, and waits after each one."""

    def __init__(self, folder: Path, method: str, clients: int, rounds: int) -> None:
        """Resume a run after `rounds` rounds, in which all of its clients were called."""
        world = federation(**BASE | {"clients": clients})
        changes = {"warmup_share": "0"} if method == "fedgr" else {}
        made = default_methods().make(method, {}, changes)
        config = RunConfig(
            method, "random", "iid", "sym-1.0", "none", 1, "cpu", world.training, values_of(made)
        )
        options, devices = RunOptions(method, out=folder), choose_devices("cpu")
        self.runner = Runner(options, config, made, world.dataset, world.scenario, devices, changes)
        self.first = rounds
        make_history(self.runner, rounds)
        self._go, self._done, self._stop = Semaphore(0), Semaphore(0), False
        self._thread = Thread(target=self._run)
        self._thread.start()
        self._done.acquire()

    def _run(self) -> None:
        with suppress(KeyboardInterrupt):
            self.runner.run(progress=self._wait)

    def _wait(self, row: Mapping[str, Any]) -> None:
        if row["round"] >= self.first - 1:
            self._done.release()
            self._go.acquire()
            if self._stop:
                raise KeyboardInterrupt

    def run_round(self) -> None:
        """Run one more round."""
        self._go.release()
        self._done.acquire()

    def close(self) -> None:
        """End the run."""
        self._stop = True
        self._go.release()
        self._thread.join()


class Parts(dict[Name, Any]):
    """Parts of a checkpoint."""

    def parts(self) -> Self:
        """Return all."""
        return self

    changes = parts


def make_history(runner: Runner, rounds: int) -> None:
    """Write the checkpoint of a run as if it had run many rounds and called all clients."""

    def stop(row: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        runner.run(progress=stop)
    parts, (row,) = runner.checkpoint.load()
    for name, part in list(parts.items()):
        *kind, k = name
        if k == row["clients"][0]:  # its state, and what the server has about it
            for place in range(len(runner.scenario.clients)):
                other = part | {"place": place} if kind[0] == "server" else part
                parts.setdefault((*kind, place), other)
    parts["engine",]["round"] = rounds
    shutil.rmtree(runner.folder.checkpoint)
    Checkpoint(runner.folder.checkpoint).save(Parts(parts), [{**row, "round": r} for r in range(rounds)])


def recorded(cases: Sequence[tuple[int, int]], method: str, repeats: int) -> list[float]:
    """Return the cost of a recorded round for pairs of clients and rounds before, in units of the first."""
    # The thread that writes checkpoints must not work in the turn of another run.
    save = Checkpoint.save
    with TemporaryDirectory() as folder, patch.object(Checkpoint, "save", lambda *a, **_: save(*a)):
        runs = [RecordedRun(Path(folder, str(i)), method, *case) for i, case in enumerate(cases)]
        first, *others = best_seconds([run.run_round for run in runs], repeats)
        for run in runs:
            run.close()
    return [seconds / first for seconds in others]


def long_runs(repeats: int) -> Table:
    """Measure whether recorded rounds become slower with clients and rounds before."""
    table = Table("Recorded rounds: CPU time in units of the base case")
    for method in ("fedavg", "fedgr"):
        for what, base, factors in (
            ("clients", (100, 2000), (10, 100)),
            ("rounds before", (50, 10), (10, 500)),
        ):
            column = what != "clients"
            cases = [base] + [tuple(n * f if i == column else n for i, n in enumerate(base)) for f in factors]
            costs = alone(recorded, cases, method, repeats)
            for case, cost in zip(cases[1:], costs, strict=True):
                table.add(method=method, what=what, base=base[column], value=case[column], cost=cost)
    return table


def pools(models: Sequence[str], workers: Sequence[int], repeats: int) -> Table:
    """Rounds with worker processes against rounds in one process, by the wall clock."""
    table = Table("Workers: speed of a FedAvg round against one process, by the wall clock")
    for model in models:
        world = rate_world(model)
        engines = [start(world, workers=count) for count in (1, *workers)]
        one, *shared = best_seconds([e.run_round for e in engines], repeats, time.perf_counter)
        for engine in engines[1:]:
            engine.close()
        for count, seconds in zip(workers, shared, strict=True):
            table.add(model=model, workers=count, speed=one / seconds)
    return table
