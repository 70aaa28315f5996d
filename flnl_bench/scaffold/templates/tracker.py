"""The tracker example: shows runs elsewhere while they are running."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench import RunRecord, Tracker, hookimpl

flnl_api = 1  # the version of flnl-bench's plugin API that this is written for


class Example(Tracker):
    """Writes the accuracy of every round to a table in the run's folder."""

    name = "example"
    help = "a table of accuracies, accuracy.csv"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Write the rounds that are finished already: the run may be a resumed one."""
        self.file = folder / "accuracy.csv"
        self.file.write_text("round,accuracy\n")
        for row in rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with self.file.open("a") as file:
            file.write(f"{row['round']},{row['accuracy']}\n")


@hookimpl
def flnl_register_trackers() -> list[type[Tracker]]:
    """What this plugin adds."""
    return [Example]
