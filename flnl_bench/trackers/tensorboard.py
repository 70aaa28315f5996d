"""TensorBoard: event files in the folder of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flnl_bench.trackers.tracker import TrackedRun, Tracker, numbers


class TensorBoard(Tracker):
    """Writes scalars below the run's folder; `tensorboard --logdir results/runs` shows all runs."""

    name = "tensorboard"
    help = "event files in the run's folder; show them with: tensorboard --logdir results/runs"
    requires = "tensorboard"

    def start(self, run: TrackedRun) -> None:
        """Open a writer; what was written of rounds that were lost in a stop does not count any more."""
        from torch.utils.tensorboard import SummaryWriter

        known = any(run.folder.iterdir())
        self.writer: Any = SummaryWriter(str(run.folder), purge_step=len(run.rounds) if known else None)
        self.writer.add_text("configuration", "\n".join(f"- {k}: {v}" for k, v in run.options.items()))
        for row in () if known else run.rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a round, which can be seen at once."""
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self.writer.close()
