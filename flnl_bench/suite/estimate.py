"""How long the rest of a suite will take, from what was measured here: finished runs, else a short probe."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.results.run_folder import read_records
from flnl_bench.suite.grid import fedavg_samples
from flnl_bench.suite.progress import Board

PROBE = 1.0  # seconds of training a network, to learn its rate
BATCH, CHANNELS, SIDE, CLASSES = 32, 3, 32, 10  # of the probe: CIFAR's images


@dataclass(frozen=True)
class Estimate:
    """Seconds until all runs are done, so many at once, and where that is known from."""

    seconds: float
    jobs: int
    source: str


def estimate(board: Board, out: Path, jobs: int) -> Estimate | None:
    """The time of the runs that are not done; None if it cannot be known, as the size of some data cannot."""
    items = board.having("waiting", "running")
    work = {item: fedavg_samples(item.config) for item in items}
    if not items or None in work.values():
        return None
    rates, runs = _measured(out)
    probed: dict[str, float] = {}  # by network
    sources: dict[str, str] = {}
    total = 0.0
    for item in items:
        method, model, *rest = _key(item.config)
        rate = rates.get((method, model, *rest)) or rates.get(("", model, *rest))
        if rate:
            sources["runs"] = f"{runs} finished run{'s' if runs > 1 else ''} in {out}"
        else:
            sources["probe"] = "a short probe of the networks as FedAvg, on images of CIFAR's size"
            rate = probed[model] = probed.get(model) or _probe(item.config)
        left = 1 - board.states[item].rounds / item.config.training.rounds
        total += rate * (work[item] or 0) * left
    at_once = max(1, min(jobs, len(items)))
    return Estimate(total / at_once, at_once, " and ".join(sources.values()))


def _key(config: RunConfig) -> tuple[str, str, str, str]:
    """What the seconds of a sample depend on most."""
    return config.method, config.training.model, config.dataset, config.device


def _measured(out: Path) -> tuple[dict[tuple[str, ...], float], int]:
    """Seconds a sample, as FedAvg would take samples, by `_key`, and over all methods under the method ""."""
    found = read_records(out).done.values() if out.is_dir() else ()
    rates: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for record in found:
        method, *rest = _key(record.config)
        with contextlib.suppress(BadInput):  # a data set that is not known here
            if samples := fedavg_samples(record.config):
                for key in ((method, *rest), ("", *rest)):
                    rates[key].append(record.result().seconds / samples)
    return {key: statistics.fmean(values) for key, values in rates.items()}, len(found)


def _probe(config: RunConfig) -> float:
    """Seconds a sample that this machine trains the network with."""
    import torch

    from flnl_bench.engine.devices import configure
    from flnl_bench.models import make_network

    device, protocol = torch.device(config.device), config.training
    configure(device, protocol.precision)
    network = make_network(protocol.model, channels=CHANNELS, classes=CLASSES, norm=protocol.norm).to(device)
    images = torch.zeros(BATCH, CHANNELS, SIDE, SIDE, device=device)
    labels = torch.zeros(BATCH, dtype=torch.long, device=device)

    def train(seconds: float) -> float:
        start, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - start < seconds:
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / (steps * BATCH)

    train(0.0)  # the first step is slower
    return train(PROBE)
