"""How far the runs of a suite are, read from their folders: whoever works on them, wherever."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl_bench.methods import default_methods
from flnl_bench.results.lock import owner, waits_for
from flnl_bench.suite.grid import Item, fedavg_samples
from flnl_bench.suite.suite_file import Suite

STATES = ("done", "running", "waiting", "failed")


@dataclass(frozen=True)
class RunStatus:
    """One run at one moment."""

    status: str  # one of STATES
    rounds: int = 0  # finished
    accuracy: float | None = None  # of the last finished round
    seconds: float | None = None  # of the last finished round
    error: str | None = None


def look(item: Item) -> RunStatus:
    """The state of a run, from its files."""
    folder = item.folder
    record, row = folder.read(), folder.last_round()
    if record and record.status in ("done", "failed"):
        status = record.status
    else:
        status = "running" if owner(folder.path) else "waiting"
    error = record.error if record else None
    if row is None:
        return RunStatus(status, error=error)
    return RunStatus(status, row["round"] + 1, row["accuracy"], row["seconds"], error)


@dataclass
class Board:
    """The states of all runs of a suite."""

    states: dict[Item, RunStatus]
    jobs: int = 1
    done_before: int = 0
    fresh: bool = False  # what is there is removed before anything is played
    warnings: Sequence[str] = ()  # what should be said before anything is played

    @classmethod
    def of(
        cls, items: Iterable[Item], jobs: int = 1, retry_failed: bool = False, fresh: bool = False
    ) -> Board:
        """Look at all runs; if asked, failed ones wait for another try, or all to be played anew."""
        states = {item: look(item) for item in items}
        for item, state in states.items():
            if fresh and state.status != "running":
                states[item] = RunStatus("waiting")
            elif retry_failed and state.status == "failed":
                states[item] = RunStatus("waiting", state.rounds)
        done = sum(state.status == "done" for state in states.values())
        held = [waits_for(item.folder.path) for item, state in states.items() if state.status == "running"]
        warnings = [*filter(None, held), *(() if fresh else other_code(states))]
        return cls(states, jobs, done, fresh, warnings)

    def having(self, *statuses: str) -> list[Item]:
        """The runs in these states, in the order of the suite."""
        return [item for item, state in self.states.items() if state.status in statuses]

    def counts(self) -> dict[str, int]:
        """How many runs are in each state."""
        return {status: len(self.having(status)) for status in STATES}

    def seconds_left(self) -> float | None:
        """From the pace of each method's latest rounds; None as long as no round is known."""
        paces: dict[str, list[float]] = {}
        for item, state in self.states.items():
            if state.seconds is not None:
                paces.setdefault(item.config.method, []).append(state.seconds)
        if not paces:
            return None
        pace = {method: statistics.fmean(values) for method, values in paces.items()}
        usual = statistics.fmean(pace.values())
        left = sum(self._left(item, pace, usual) for item in self.having("waiting", "running"))
        return left / max(1, min(self.jobs, len(self.having("waiting", "running"))))

    def _left(self, item: Item, pace: Mapping[str, float], usual: float) -> float:
        rounds = item.config.training.rounds - self.states[item].rounds
        return rounds * pace.get(item.config.method, usual)


def other_code(items: Iterable[Item]) -> list[str]:
    """A warning for each method, setting and so on whose code has changed since some runs began."""
    from flnl_bench.results.provenance import changed_code

    registry, counts = default_methods(), Counter[str]()
    for item in items:
        if record := item.folder.read():
            counts.update(changed_code(record, registry.method_class(item.config.method)))
    return [
        f"the code of {name} has changed since {count} of the runs were begun; --fresh starts all anew"
        for name, count in counts.items()
    ]


def suite_object(suite: Suite, board: Board, out: Path) -> dict[str, Any]:
    """Counts, cost as FedAvg and the runs in the order of the suite."""
    return {
        "suite": suite.name,
        "description": suite.description,
        "out": str(out),
        "counts": board.counts(),
        "done_before": board.done_before,
        "fedavg_samples": cost(list(board.states)),
        "fedavg_samples_left": cost(board.having("waiting", "running")),
        "runs": [run_object(item, state) for item, state in board.states.items()],
    }


def cost(items: list[Item]) -> int | None:
    """Samples forward and as many backward, if all were FedAvg; None if some data set's size is unknown."""
    each = [fedavg_samples(item.config) for item in items]
    known = [samples for samples in each if samples is not None]
    return sum(known) if len(known) == len(each) else None


def run_object(item: Item, state: RunStatus) -> dict[str, Any]:
    """One run."""
    record = item.folder.read()
    summary = record.summary if record and state.status == "done" else None
    return {
        "label": item.label,
        **item.config.names,
        "status": state.status,
        "rounds": state.rounds,
        "last10": summary.last10 if summary else None,
        "best": summary.best if summary else None,
        "resumed": record.resumed if record else None,
        "error": state.error if state.status == "failed" else None,
        "run_dir": str(item.folder.path),
    }
