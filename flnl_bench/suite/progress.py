"""The progress of a suite, read from the folders of its runs, whichever process or machine works on them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flnl_bench.errors import BadInput
from flnl_bench.methods import default_methods
from flnl_bench.results.lock import owner, remote_claim
from flnl_bench.results.run_record import RoundRow, RunRecord, read_last_round
from flnl_bench.suite.grid import PlannedRun, total_fedavg_samples
from flnl_bench.suite.suite_file import Suite

STATUSES = ("done", "running", "waiting", "failed")


class Progress(NamedTuple):
    """One run at one moment: its status in the suite, and what its folder holds."""

    status: str  # one of STATUSES
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
        return {status: len(self.having(status)) for status in STATUSES}

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
