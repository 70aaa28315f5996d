"""Clocks, and how repetitions are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch


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


def clock_of(device: torch.device) -> Callable[[], float]:
    """CPU time where the CPU computes; else the time at which the device has done what it was given."""
    if device.type == "cpu":
        return time.process_time
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}[device.type]

    def clock() -> float:
        wait()
        return time.perf_counter()

    return clock
