"""A suite as one JSON object: its runs, their states and headline numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flnl_bench.recorder.record import trusted
from flnl_bench.suite.estimate import fedavg_samples
from flnl_bench.suite.file import Suite
from flnl_bench.suite.grid import Item
from flnl_bench.suite.state import Board, State

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


def run_object(item: Item, state: State) -> dict[str, Any]:
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
