"""The progress of a suite, read from the folders of its runs, and the time that the rest will take."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flnl_bench.config import RunConfig
from flnl_bench.data import find_dataset, load_dataset
from flnl_bench.errors import BadInput
from flnl_bench.methods import default_methods
from flnl_bench.results.lock import owner, remote_claim
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import RoundRow, RunRecord, read_last_round
from flnl_bench.suite.grid import PlannedRun
from flnl_bench.suite.suite_file import Suite

SUITE_STATUSES = ("done", "running", "waiting", "failed")
PROBE_SECONDS = 1.0  # of training a network
PROBE_BATCH = 32


class Progress(NamedTuple):
    """One run at one moment: its status in the suite, and the content of its folder."""

    status: str  # one of SUITE_STATUSES
    record: RunRecord | None = None
    last_round: RoundRow | None = None  # the last finished round
    error: str | None = None  # why the run failed

    @property
    def rounds(self) -> int:
        """The number of finished rounds."""
        return self.last_round["round"] + 1 if self.last_round else 0

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last finished round, in percent."""
        return self.last_round["accuracy"] if self.last_round else None


def progress_of(planned: PlannedRun) -> Progress:
    """Read the progress of a run from its record, its last round and its lock."""
    folder = planned.folder
    try:
        record = folder.read()
    except BadInput as problem:  # torn or foreign: another run must not overwrite it unasked
        return Progress("failed", error=str(problem))
    last_round = read_last_round(folder.path)
    if record and record.done:
        return Progress("done", record, last_round)
    if record and record.status == "failed":
        return Progress("failed", record, last_round, record.error or "unknown error")
    return Progress("running" if owner(folder.path) else "waiting", record, last_round)


@dataclass
class SuiteProgress:
    """The progress of all runs of a suite."""

    runs: dict[PlannedRun, Progress]
    jobs: int = 1  # runs at once
    done_before: int = 0  # runs that were done when the suite started
    fresh: bool = False  # existing runs are removed before the first one starts
    warnings: Sequence[str] = ()  # for the user, before the first run starts

    @classmethod
    def of(
        cls, plans: Iterable[PlannedRun], jobs: int = 1, retry_failed: bool = False, fresh: bool = False
    ) -> SuiteProgress:
        """Read the progress of all runs; with `retry_failed` or `fresh`, runs that will start again wait."""
        runs = {planned: progress_of(planned) for planned in plans}
        for planned, progress in runs.items():
            if fresh and progress.status != "running":
                runs[planned] = Progress("waiting")
            elif retry_failed and progress.status == "failed":
                runs[planned] = progress._replace(status="waiting", error=None)
        done = sum(progress.status == "done" for progress in runs.values())
        running = [planned for planned, progress in runs.items() if progress.status == "running"]
        claims = [remote_claim(planned.folder.path) for planned in running]
        warnings = [*filter(None, claims), *([] if fresh else code_warnings(runs))]
        return cls(runs, jobs, done, fresh, warnings)

    def having(self, *statuses: str) -> list[PlannedRun]:
        """Return the runs with one of these statuses, in the order of the suite."""
        return [planned for planned, progress in self.runs.items() if progress.status in statuses]

    def counts(self) -> dict[str, int]:
        """Return the number of runs per status."""
        return {status: len(self.having(status)) for status in SUITE_STATUSES}

    def seconds_left(self) -> float | None:
        """Estimate from the last round of each run of a method; None before the first round."""
        seconds: dict[str, list[float]] = {}  # of last rounds, by method
        for planned, progress in self.runs.items():
            if progress.last_round:
                seconds.setdefault(planned.config.method, []).append(progress.last_round["seconds"])
        if not seconds:
            return None
        per_round = {method: statistics.fmean(values) for method, values in seconds.items()}
        usual = statistics.fmean(per_round.values())
        left = self.having("waiting", "running")
        rounds = {planned: planned.config.training.rounds - self.runs[planned].rounds for planned in left}
        total = sum(per_round.get(planned.config.method, usual) * rounds[planned] for planned in left)
        return total / max(1, min(self.jobs, len(left)))


def code_warnings(runs: Mapping[PlannedRun, Progress]) -> list[str]:
    """Return a warning for each method or other part whose code has changed since runs were started."""
    from flnl_bench.results.provenance import changed_code

    registry, counts = default_methods(), Counter[str]()
    for planned, progress in runs.items():
        if progress.record:
            counts.update(changed_code(progress.record, registry.method_class(planned.config.method)))
    return [
        f"the code of {part} has changed since {count} of the runs were started; --fresh starts all again"
        for part, count in counts.items()
    ]


# -- cost --------------------------------------------------------------------------------------------
def fedavg_samples(config: RunConfig) -> int | None:
    """Count the samples that FedAvg runs forward in all rounds, and as many backward.

    None if the size of the data set is not known.
    """
    training = config.training
    sizes = (find_dataset(config.dataset).train_images, training.samples)
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    per_epoch = training.rounds * training.sampled_clients * min(known) / training.clients
    return round(per_epoch * training.epochs)


def total_fedavg_samples(plans: list[PlannedRun]) -> int | None:
    """Sum `fedavg_samples` over runs; None if the size of a data set is not known."""
    counts = [fedavg_samples(planned.config) for planned in plans]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


# -- time --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Estimate:
    """Seconds until all runs are done, with `jobs` runs at once, and the source of that number."""

    seconds: float
    jobs: int
    source: str


def estimate_time(progress: SuiteProgress, out: Path, jobs: int) -> Estimate | None:
    """Estimate the time of the runs that are not done; None if the size of a data set is not known."""
    plans = progress.having("waiting", "running")
    samples = {planned: fedavg_samples(planned.config) for planned in plans}
    if not plans or None in samples.values():
        return None
    rates, runs = _measured(out)
    probed: dict[tuple[str, str], float] = {}  # by network and data set
    sources: dict[str, str] = {}
    total = 0.0
    for planned in plans:
        method, model, *rest = _key(planned.config)
        rate = rates.get((method, model, *rest)) or rates.get(("", model, *rest))
        if rate:
            sources["runs"] = f"{runs} finished run{'s' if runs > 1 else ''} in {out}"
        else:
            sources["probe"] = "a short probe of the networks as FedAvg"
            key = (model, planned.config.dataset)
            rate = probed[key] = probed.get(key) or _probe(planned.config)
        left = 1 - progress.runs[planned].rounds / planned.config.training.rounds
        total += rate * (samples[planned] or 0) * left
    at_once = max(1, min(jobs, len(plans)))
    return Estimate(total / at_once, at_once, " and ".join(sources.values()))


def _key(config: RunConfig) -> tuple[str, str, str, str]:
    """Return the parts of a run that its seconds per sample depend on most."""
    return config.method, config.training.model, config.dataset, config.device


def _measured(out: Path) -> tuple[dict[tuple[str, ...], float], int]:
    """Return seconds per sample of FedAvg by `_key`, those of all methods with "" as the method.

    Imported runs do not count: another machine made them.
    """
    finished = [record for record in read_runs(out)[0] if record.done] if out.is_dir() else []
    records = [record for record in finished if not record.imported]
    rates: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for record in records:
        method, *rest = _key(record.config)
        with contextlib.suppress(BadInput):  # a data set that is not known here
            if samples := fedavg_samples(record.config):
                for key in ((method, *rest), ("", *rest)):
                    rates[key].append(record.result().seconds / samples)
    return {key: statistics.fmean(values) for key, values in rates.items()}, len(records)


def _probe(config: RunConfig) -> float:
    """Measure the seconds per sample in which this machine trains the network.

    Images have the size of the data set's, or of CIFAR's where it is not known.
    """
    import torch

    from flnl_bench.engine.devices import configure_torch
    from flnl_bench.models import make_network

    device, training = torch.device(config.device), config.training
    configure_torch(device, training.precision)
    kind = find_dataset(config.dataset)
    shape: tuple[int, ...] = kind.image_shape or (3, 32, 32)
    if kind.offline:
        shape = tuple(load_dataset(config.dataset).train_x.shape[1:])
    network = make_network(training.model, channels=shape[0], classes=10, norm=training.norm).to(device)
    images = torch.zeros(PROBE_BATCH, *shape, device=device)
    labels = torch.zeros(PROBE_BATCH, dtype=torch.long, device=device)

    def train(seconds: float) -> float:
        start, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - start < seconds:
            torch.autograd.backward(torch.nn.functional.cross_entropy(network(images), labels))
            steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / (steps * PROBE_BATCH)

    train(0.0)  # the first step is slower
    return train(PROBE_SECONDS)


# -- plain values, for JSON and frames ---------------------------------------------------------------
def suite_object(suite: Suite, progress: SuiteProgress, out: Path) -> dict[str, Any]:
    """Return counts, cost and all runs of a suite as plain values."""
    return {
        "suite": suite.name,
        "description": suite.description,
        "out": str(out),
        "counts": progress.counts(),
        "done_before": progress.done_before,
        "fedavg_samples": total_fedavg_samples(list(progress.runs)),
        "fedavg_samples_left": total_fedavg_samples(progress.having("waiting", "running")),
        "runs": [run_object(planned, state) for planned, state in progress.runs.items()],
    }


def run_object(planned: PlannedRun, progress: Progress) -> dict[str, Any]:
    """Return one run as plain values."""
    record, done = progress.record, progress.status == "done"
    return {
        "label": planned.label,
        **planned.config.names,
        "status": progress.status,
        "rounds": progress.rounds,
        "last10": record.last10 if record and done else None,
        "best": record.best if record and done else None,
        "resumed": record.resumed if record else None,
        "error": progress.error,
        "run_dir": str(planned.folder.path),
    }
