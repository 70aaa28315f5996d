"""Images per second of our engine, of the limit and of naive code, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

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


def rates(models: Sequence[str], repeats: int) -> Table:
    """One row a model."""
    table = Table("Rates: images per second of CPU time, one core")
    for model in models:
        world = rate_world(model)
        loops = [make(world) for make in LOOPS.values()]
        seconds = dict(zip(LOOPS, best_seconds([loop.play for loop in loops], repeats), strict=True))
        table.add(
            model=model,
            **{name: world.images / spent for name, spent in seconds.items()},
            engine_to_limit=seconds["limit"] / seconds["engine"],
            engine_to_naive=seconds["naive"] / seconds["engine"],
        )
    return table
