"""How the cost of a round grows: with sampled clients, samples, all clients, rounds and workers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.speed.loops import start
from benchmarks.speed.measuring import Table, best_seconds
from benchmarks.speed.memory import MEBIBYTE, alone, peak_memory
from flnl_bench.testing.worlds import World, make_world, random_images, rate_world

BASE = {"sampled": 10, "samples": 64, "clients": 100}  # samples of each client
FACTORS = {"sampled": (2, 4, 8), "samples": (2, 4, 8), "clients": (10, 100)}
ROUNDS = 200
WARM = 20  # rounds after which every client was seen and every buffer exists


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


def compare_late_rounds(method: str) -> tuple[float, int]:
    """Return late rounds in units of early ones, and the growth of the peak memory in bytes."""
    changes = {"warmup_share": 0} if method == "fedgr" else {}
    old, young = (start(federation(sampled=10, samples=64, clients=20), method, **changes) for _ in range(2))
    peaks = []
    for _ in range(ROUNDS):
        old.run_round()
        peaks.append(peak_memory())
    for _ in range(WARM):
        young.run_round()
    late, early = best_seconds([old.run_round, young.run_round], repeats=WARM)
    return late / early, peaks[-1] - peaks[WARM]


def long_runs() -> Table:
    """Measure whether rounds become slower, and whether memory leaks."""
    table = Table(f"Rounds: CPU time after {ROUNDS} in units of that after {WARM}, interleaved")
    for method in ("fedavg", "fedgr"):
        ratio, leaked = alone(compare_late_rounds, method)
        table.add(method=method, cost=ratio, peak_grew_by_mebibytes=leaked / MEBIBYTE)
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
