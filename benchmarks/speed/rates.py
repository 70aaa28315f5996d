"""Images per second of our engine, of the limit and of naive code, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

from benchmarks.speed.loops import Limit, Naive, Ours
from benchmarks.speed.measuring import Table
from flnl_bench.testing.worlds import World, rate_world

LOOPS: Mapping[str, Callable[[World], Ours | Limit | Naive]] = {
    "engine": Ours,
    "limit": Limit,
    "naive": Naive,
}
loop: Ours | Limit | Naive  # of this process


def prepare(name: str, model: str) -> None:
    """Give this process its loop, warmed up."""
    global loop
    loop = LOOPS[name](rate_world(model))
    loop.run_round()


def timed() -> float:
    """Return the CPU seconds of one round in this process."""
    start = time.process_time()
    loop.run_round()
    return time.process_time() - start


def rates(models: Sequence[str], repeats: int) -> Table:
    """Return one row per model; every loop has a process of its own, since the engine sets up its process."""
    table = Table("Rates: images per second of CPU time, one core")
    for model in models:
        images, best = rate_world(model).images, dict.fromkeys(LOOPS, float("inf"))
        with ExitStack() as stack:
            pools = {
                name: stack.enter_context(
                    ProcessPoolExecutor(1, get_context("spawn"), initializer=prepare, initargs=(name, model))
                )
                for name in LOOPS
            }
            for _ in range(repeats):
                for name, pool in pools.items():
                    best[name] = min(best[name], pool.submit(timed).result())
        table.add(
            model=model,
            **{name: images / spent for name, spent in best.items()},
            engine_to_limit=best["limit"] / best["engine"],
            engine_to_naive=best["naive"] / best["engine"],
        )
    return table
