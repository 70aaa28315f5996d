"""How far the runs of a suite are, read from their folders: whoever works on them, wherever."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl_bench.recorder.claim import owner
from flnl_bench.recorder.record import trusted
from flnl_bench.suite.file import Suite
from flnl_bench.suite.grid import Item, fedavg_samples

STATES = ("done", "running", "waiting", "failed")
TAIL = 1 << 16  # bytes of rounds.jsonl that hold its last line


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
    record = trusted(folder.path) or {}
    row = last_round(folder.rounds_file) or {}
    status = record.get("status")
    if status not in ("done", "failed"):
        status = "running" if owner(folder.path) else "waiting"
    played, error = row.get("round"), record.get("error")
    return RunStatus(
        status,
        rounds=played + 1 if type(played) is int else 0,
        accuracy=_number(row.get("accuracy")),
        seconds=_number(row.get("seconds")),
        error=None if error is None else str(error),
    )


def _number(value: object) -> float | None:
    """A number; anything else in a file is not ours."""
    return float(value) if isinstance(value, int | float) else None


def last_round(path: Path) -> dict[str, Any] | None:
    """The last whole line of rounds.jsonl, without reading the others."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
    for line in reversed(lines):
        try:
            if line.endswith(b"\n") and isinstance(row := json.loads(line), dict):
                return row
        except ValueError:
            continue
    return None


@dataclass
class Board:
    """The states of all runs of a suite."""

    states: dict[Item, RunStatus]
    jobs: int = 1
    done_before: int = 0

    @classmethod
    def of(cls, items: Iterable[Item], jobs: int = 1, retry_failed: bool = False) -> Board:
        """Look at all runs; failed ones wait for another try if asked."""
        states = {item: look(item) for item in items}
        for item, state in states.items():
            if retry_failed and state.status == "failed":
                states[item] = RunStatus("waiting", state.rounds)
        return cls(states, jobs, sum(state.status == "done" for state in states.values()))

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


NAMES = ("method", "dataset", "partition", "setting", "preset", "seed")


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
    record = trusted(item.folder.path) or {}
    summary = (record.get("summary") or {}) if state.status == "done" else {}
    return {
        "label": item.label,
        **{name: getattr(item.config, name) for name in NAMES},
        "status": state.status,
        "rounds": state.rounds,
        "last10": summary.get("last10"),
        "best": summary.get("best"),
        "resumed": record.get("resumed"),
        "error": state.error if state.status == "failed" else None,
        "run_dir": str(item.folder.path),
    }
