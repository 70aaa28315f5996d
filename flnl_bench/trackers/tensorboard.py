"""TensorBoard: event files in the folder of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.trackers.tracker import Tracker, numbers

if TYPE_CHECKING:
    from flnl_bench.results.run_record import RunRecord


class TensorBoard(Tracker):
    """Writes scalars below the run's folder; `tensorboard --logdir results/runs` shows all runs."""

    name = "tensorboard"
    help = "event files in the run's folder; show them with: tensorboard --logdir results/runs"
    requires = "tensorboard"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Open a writer that replaces the entries of rounds that were lost in a stop."""
        from torch.utils.tensorboard import SummaryWriter

        known = any(folder.iterdir())
        self.writer: Any = SummaryWriter(str(folder), purge_step=len(rounds) if known else None)
        self.writer.add_text("configuration", "\n".join(f"- {k}: {v}" for k, v in run.config.flat().items()))
        for row in () if known else rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a round and flush them."""
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self.writer.close()
