"""Peak memory of each loop, and of the engine with more clients; every figure from a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.speed.loops import start
from benchmarks.speed.measuring import Table
from benchmarks.speed.rates import LOOPS
from flnl_bench.testing.worlds import make_world, random_images, rate_world

MEBIBYTE = 1 << 20


def peak_memory() -> int:
    """Bytes, the most that this process ever held."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux a new process inherits the peak of the one that started it.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `work` in a new process."""
    # Not a Pool, which waits forever for a process that was killed, as by a lack of memory.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def loop_peaks(name: str, model: str) -> tuple[int, int]:
    """Return the peak before and after two rounds of a loop."""
    world = rate_world(model)
    before = peak_memory()
    loop = LOOPS[name](world)
    loop.run_round()
    loop.run_round()
    return before, peak_memory()


def client_peaks(method: str, model: str, clients: int) -> tuple[int, int]:
    """Peak before and after as many rounds of two clients, one batch each, as could visit all of them."""
    dataset = random_images(32 * clients, 3, 32)
    world = make_world(dataset, model, clients, epochs=1, fraction=2 / clients)
    before = peak_memory()
    engine = start(world, method)
    for _ in range(clients // 2):
        engine.run_round()
    return before, peak_memory()


def loop_memory(models: Sequence[str]) -> Table:
    """Return one row per model and loop."""
    table = Table("Memory: peak in MiB, and what of it came after imports and data")
    for model in models:
        for name in LOOPS:
            before, after = alone(loop_peaks, name, model)
            table.add(model=model, loop=name, peak=after / MEBIBYTE, added=(after - before) / MEBIBYTE)
    return table


def client_memory(models: Sequence[str]) -> Table:
    """Ten clients against a hundred: state that no method asked for must not grow."""
    table = Table("Memory in MiB added by K/2 rounds with two of K clients")
    for model in (model for model in models if model != "tiny-cnn"):
        for method in ("fedavg", "fedgr"):
            few, many = (alone(client_peaks, method, model, clients) for clients in (10, 100))
            added = [(after - before) / MEBIBYTE for before, after in (few, many)]
            table.add(model=model, method=method, of_10_clients=added[0], of_100_clients=added[1])
    return table


ROUNDS = 200
WARM = 20  # rounds after which every client was called and every buffer exists


def leak(method: str) -> int:
    """Return by how many bytes the peak grows after the first rounds."""
    world = make_world(random_images(64 * 20, 1, 8), "tiny-cnn", 20, epochs=1, fraction=0.5)
    engine, peaks = start(world, method), []
    for _ in range(ROUNDS):
        engine.run_round()
        peaks.append(peak_memory())
    return peaks[-1] - peaks[WARM]


def round_memory(models: Sequence[str]) -> Table:
    """Measure whether memory grows with rounds; on a tiny network, whatever the models."""
    table = Table(f"Memory: growth of the peak from round {WARM} to {ROUNDS}")
    for method in ("fedavg", "fedgr"):
        table.add(method=method, mebibytes=alone(leak, method) / MEBIBYTE)
    return table
