"""Weights & Biases: online, or offline with WANDB_MODE=offline."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.trackers.tracker import Tracker, numbers

if TYPE_CHECKING:
    from flnl_bench.results.run_record import RunRecord


class WeightsAndBiases(Tracker):
    """Logs options and numbers; a resumed run is resumed there, too."""

    name = "wandb"
    help = "a run of Weights & Biases, set by WANDB_PROJECT and WANDB_MODE"
    requires = "wandb"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Open a run, or the one that was opened before the stop."""
        import wandb

        kept = folder / "run-id"
        known = kept.exists()
        number = kept.read_text() if known else secrets.token_hex(4)
        kept.write_text(number)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "flnl-bench"),
            id=number,
            name=run.config.title,
            config=run.config.flat(),
            dir=str(folder),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        for row in () if known else rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a round."""
        self.run.log(numbers(row), step=row["round"])

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Log the summary and close the run."""
        self.run.summary.update({f"summary/{key}": value for key, value in numbers(summary).items()})
        self.run.finish(exit_code=0 if status == "done" else 1)
