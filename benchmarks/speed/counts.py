"""Kernels and host syncs per step: what decides the speed on a GPU, counted on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.speed.counting import Counter
from benchmarks.speed.loops import Limit, Naive, Ours
from benchmarks.speed.measuring import Table
from flnl_bench.testing.worlds import World, rate_world


def naive(world: World) -> Naive:
    """Naive code that loads its images in another process: PIL's work would not be the device's."""
    return Naive(world, loaders=1)


def counted(make: Callable[[World], Ours | Limit | Naive], world: World) -> np.ndarray:
    """Return the kernels and syncs of one round."""
    loop = make(world)
    loop.run_round()
    with Counter() as counter:
        loop.run_round()
    return np.array([counter.kernels, counter.syncs])


def counts(models: Sequence[str]) -> Table:
    """Count a round of one client with one epoch, and with two: the difference is that of the steps."""
    table = Table("Kernels launched and host syncs, per step and outside of the steps of a round")
    for model in models:
        once = rate_world(model, clients=1, epochs=1)
        twice = dataclasses.replace(once, training=dataclasses.replace(once.training, epochs=2))
        for name, make in (("engine", Ours), ("limit", Limit), ("naive", naive)):
            short, long = counted(make, once), counted(make, twice)
            step = (long - short) / (twice.steps - once.steps)
            other = short - step * once.steps
            table.add(
                model=model,
                loop=name,
                kernels_per_step=float(step[0]),
                syncs_per_step=float(step[1]),
                kernels_other=round(other[0]),
                syncs_other=round(other[1]),
            )
    return table
