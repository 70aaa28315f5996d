"""Images per second of our engine, of the limit and of naive code, and of clients that train together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

from benchmarks.speed.counting import Counter
from benchmarks.speed.loops import Limit, Naive, Ours, start
from benchmarks.speed.measuring import Table, best_seconds
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


def stacks(models: Sequence[str], methods: Sequence[str], repeats: int) -> Table:
    """Return one row per model, method and number of clients that train together; 1: one after the other."""
    table = Table("Clients that train together: whole rounds, images per second of CPU time, one core")
    for model in models:
        world = rate_world(model)
        clients = world.training.clients
        sizes = sorted({1, 2, clients // 2, clients})
        for method in methods:
            worlds = [
                dataclasses.replace(world, training=dataclasses.replace(world.training, stack=size))
                for size in sizes
            ]
            engines = [start(each, method) for each in worlds]
            seconds = best_seconds([engine.run_round for engine in engines], repeats)
            for size, engine, spent in zip(sizes, engines, seconds, strict=True):
                with Counter() as counter:
                    counts = engine.run_round().counts
                steps = counts.get("steps", world.steps)
                table.add(
                    model=model,
                    method=method,
                    stack=size,
                    images_per_second=world.images / spent,
                    speed=seconds[0] / spent,
                    kernels_per_step=counter.kernels / steps,
                    stacked=counts.get("stacked", 0) / steps,
                )
    return table
