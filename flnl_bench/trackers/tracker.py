"""What a tracker is, and what it sees of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from flnl_bench.config import RunConfig


@dataclass(frozen=True)
class TrackedRun:
    """A run that starts or goes on, as a tracker sees it."""

    config: RunConfig
    folder: Path  # for the tracker's own files: kept with the run, removed by --fresh
    rounds: Sequence[Mapping[str, Any]]  # rows that were played before; empty if the run does not go on

    @property
    def title(self) -> str:
        """The run in a few words."""
        return " · ".join(str(value) for value in self.config.names.values())

    @property
    def options(self) -> dict[str, Any]:
        """The whole configuration without nesting: `method`, `training.lr`, `hyperparameters.mu`, …"""
        flat: dict[str, Any] = {}
        for name, value in self.config.as_dict().items():
            nested = isinstance(value, Mapping)
            flat |= {f"{name}.{key}": one for key, one in value.items()} if nested else {name: value}
        return flat


class Tracker:
    """Sees one run: its start, every round, its end. What it raises never stops the run."""

    name: ClassVar[str]
    help: ClassVar[str]
    requires: ClassVar[str] = ""  # a module without which it cannot work, which is also an extra of pip

    def start(self, run: TrackedRun) -> None:
        """A run starts, or goes on after a stop."""

    def round(self, row: Mapping[str, Any]) -> None:
        """A round is finished; the row is that of rounds.jsonl."""

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """The run is "done", "interrupted" or "failed"; the summary is that of run.json, maybe empty."""


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, without nesting: `accuracy`, `diagnostics/memorised`, …"""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": one for key, one in value.items() if isinstance(one, int | float)}
        elif isinstance(value, int | float) and name != "round":
            flat[name] = value
    return flat
