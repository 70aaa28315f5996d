"""Images per second of our engine, of the limit and of naive code, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

from benchmarks.speed.limit import Limit
from benchmarks.speed.naive import Naive
from benchmarks.speed.ours import Ours
from benchmarks.speed.table import Table
from benchmarks.speed.worlds import World, rate_world

LOOPS: Mapping[str, Callable[[World], Ours | Limit | Naive]] = {
    "engine": Ours,
    "limit": Limit,
    "naive": Naive,
}
loop: Ours | Limit | Naive  # of this process


def best_seconds(
    plays: Sequence[Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """The shortest of several repetitions of each, a b c a b c …, after one that does not count.

    CPU time by default: with one thread and no waiting it is the time of an idle machine, and other
    processes disturb it little.
    """
    best = [float("inf")] * len(plays)
    for play in plays:
        play()
    for _ in range(repeats):
        for i, play in enumerate(plays):
            start = clock()
            play()
            best[i] = min(best[i], clock() - start)
    return best


def prepare(name: str, model: str) -> None:
    """Give this process its loop, warmed up."""
    global loop
    loop = LOOPS[name](rate_world(model))
    loop.play()


def timed() -> float:
    """CPU seconds of one play in this process."""
    start = time.process_time()
    loop.play()
    return time.process_time() - start


def rates(models: Sequence[str], repeats: int) -> Table:
    """One row a model; every loop has a process of its own, since the engine sets up its process."""
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
