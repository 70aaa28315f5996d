"""The tracker example: where runs are shown while they are played."""

from collections.abc import Mapping
from typing import Any

from flnl_bench import TrackedRun, Tracker, hookimpl

flnl_api = 1  # the version of flnl-bench's plugin API that this is written for


class Example(Tracker):
    """Writes the accuracy of every round to a table in the run's folder."""

    name = "example"
    help = "a table of accuracies, accuracy.csv"

    def start(self, run: TrackedRun) -> None:
        """Write what is known already: a run that was stopped goes on here, too."""
        self.file = run.folder / "accuracy.csv"
        self.file.write_text("round,accuracy\n")
        for row in run.rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with self.file.open("a") as file:
            file.write(f"{row['round']},{row['accuracy']}\n")


@hookimpl
def flnl_register_trackers() -> list[type[Tracker]]:
    """What this plugin adds."""
    return [Example]
