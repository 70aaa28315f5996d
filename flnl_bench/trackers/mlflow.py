"""MLflow: a run of the server, database or folder that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.trackers.tracker import Tracker, numbers

if TYPE_CHECKING:
    from flnl_bench.results.run_record import RunRecord

STATUS = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Logs options and numbers; a resumed run is resumed there, too."""

    name = "mlflow"
    help = "a run of MLflow, set by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME"
    requires = "mlflow"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Open a run, or the one that was opened before the stop."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client, kept = MlflowClient(), folder / "run-id"
        if kept.exists():
            self.id = kept.read_text()
            self.client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "flnl-bench")
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        self.id = self.client.create_run(experiment, run_name=run.config.title).info.run_id
        kept.write_text(self.id)
        self.client.log_batch(
            self.id, params=[Param(key, str(value)) for key, value in run.config.flat().items()]
        )
        for row in rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a round."""
        self._log(numbers(row), row["round"])

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Log the summary and close the run."""
        if summary:
            self._log(
                {f"summary/{key}": value for key, value in numbers(summary).items()}, summary["rounds"] - 1
            )
        self.client.set_terminated(self.id, STATUS[status])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(self.id, metrics=[Metric(k, float(v), now, step) for k, v in values.items()])
