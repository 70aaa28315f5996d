"""The base class of trackers, which show runs elsewhere while they are running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from flnl_bench.results.run_record import RunRecord


class Tracker:
    """Follows one run: its start, every round, its end. An exception in it never stops the run."""

    name: ClassVar[str]
    help: ClassVar[str]
    requires: ClassVar[str] = ""  # a module without which it cannot work, which is also an extra of pip

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Handle the start of a run, or its resume after a stop.

        Args:
            run: its record; `run.config.title` names it, `run.config.flat()` is the whole configuration.
            folder: for the tracker's own files: kept with the run, removed by --fresh.
            rounds: the rows of the rounds before a resume; empty if the run has just started.
        """

    def round(self, row: Mapping[str, Any]) -> None:
        """Handle a finished round; the row is that of rounds.jsonl."""

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Handle the end: "done", "interrupted" or "failed"; the summary is that of run.json, maybe empty."""


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row without nesting: `accuracy`, `diagnostics/memorised`, …"""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": one for key, one in value.items() if isinstance(one, int | float)}
        elif isinstance(value, int | float) and name != "round":
            flat[name] = value
    return flat
