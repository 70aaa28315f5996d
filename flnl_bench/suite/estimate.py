"""Estimate how long the rest of a suite will take on this machine, from finished runs or a short probe."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.results.run_folder import read_runs
from flnl_bench.suite.grid import fedavg_samples
from flnl_bench.suite.progress import SuiteProgress

PROBE_SECONDS = 1.0  # of training a network
PROBE_BATCH = 32
PROBE_CHANNELS, PROBE_SIDE, PROBE_CLASSES = 3, 32, 10  # of CIFAR-10


@dataclass(frozen=True)
class Estimate:
    """Seconds until all runs are done, with `jobs` runs at once, and the source of that number."""

    seconds: float
    jobs: int
    source: str


def estimate(progress: SuiteProgress, out: Path, jobs: int) -> Estimate | None:
    """Estimate the time of the runs that are not done; None if the size of a data set is not known.

    Args:
        progress: all runs of the suite.
        out: the folder of the runs.
        jobs: runs at once.
    """
    plans = progress.having("waiting", "running")
    samples = {planned: fedavg_samples(planned.config) for planned in plans}
    if not plans or None in samples.values():
        return None
    rates, runs = _measured(out)
    probed: dict[str, float] = {}  # by network
    sources: dict[str, str] = {}
    total = 0.0
    for planned in plans:
        method, model, *rest = _key(planned.config)
        rate = rates.get((method, model, *rest)) or rates.get(("", model, *rest))
        if rate:
            sources["runs"] = f"{runs} finished run{'s' if runs > 1 else ''} in {out}"
        else:
            sources["probe"] = "a short probe of the networks as FedAvg, on images of CIFAR's size"
            rate = probed[model] = probed.get(model) or _probe(planned.config)
        left = 1 - progress.runs[planned].rounds / planned.config.training.rounds
        total += rate * (samples[planned] or 0) * left
    at_once = max(1, min(jobs, len(plans)))
    return Estimate(total / at_once, at_once, " and ".join(sources.values()))


def _key(config: RunConfig) -> tuple[str, str, str, str]:
    """Return the parts of a run that its seconds per sample depend on most."""
    return config.method, config.training.model, config.dataset, config.device


def _measured(out: Path) -> tuple[dict[tuple[str, ...], float], int]:
    """Return seconds per sample of FedAvg by `_key`, those of all methods with "" as the method."""
    records = [record for record in read_runs(out)[0] if record.done] if out.is_dir() else []
    rates: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for record in records:
        method, *rest = _key(record.config)
        with contextlib.suppress(BadInput):  # a data set that is not known here
            if samples := fedavg_samples(record.config):
                for key in ((method, *rest), ("", *rest)):
                    rates[key].append(record.result().seconds / samples)
    return {key: statistics.fmean(values) for key, values in rates.items()}, len(records)


def _probe(config: RunConfig) -> float:
    """Measure the seconds per sample in which this machine trains the network."""
    import torch

    from flnl_bench.engine.devices import configure_torch
    from flnl_bench.models import make_network

    device, training = torch.device(config.device), config.training
    configure_torch(device, training.precision)
    channels, classes = PROBE_CHANNELS, PROBE_CLASSES
    network = make_network(training.model, channels=channels, classes=classes, norm=training.norm).to(device)
    images = torch.zeros(PROBE_BATCH, channels, PROBE_SIDE, PROBE_SIDE, device=device)
    labels = torch.zeros(PROBE_BATCH, dtype=torch.long, device=device)

    def train(seconds: float) -> float:
        start, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - start < seconds:
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / (steps * PROBE_BATCH)

    train(0.0)  # the first step is slower
    return train(PROBE_SECONDS)
