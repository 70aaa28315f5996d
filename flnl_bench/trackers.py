"""Trackers show runs elsewhere while they run: TensorBoard, MLflow, Weights & Biases, or a plugin's."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from flnl_bench.errors import BadInput, one_line
from flnl_bench.registry import Registry, check_name

if TYPE_CHECKING:
    from flnl_bench.results.run_record import RunRecord

Warn = Callable[[str], None]  # takes one line for the user


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
            flat |= {f"{name}/{key}": inner for key, inner in value.items() if isinstance(inner, int | float)}
        elif isinstance(value, int | float) and name != "round":
            flat[name] = value
    return flat


class TensorBoard(Tracker):
    """Writes event files in the run's folder."""

    name = "tensorboard"
    help = "event files in the run's folder; show them with: tensorboard --logdir results/runs"
    requires = "tensorboard"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Open a writer; after a resume, it replaces the entries of rounds that the stop undid."""
        from torch.utils.tensorboard import SummaryWriter

        resumes = any(folder.iterdir())
        self.writer: Any = SummaryWriter(str(folder), purge_step=len(rounds) if resumes else None)
        self.writer.add_text("configuration", "\n".join(f"- {k}: {v}" for k, v in run.config.flat().items()))
        for row in () if resumes else rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        self.writer.close()


class MLflow(Tracker):
    """Logs options and numbers to the server, database or folder that MLFLOW_TRACKING_URI names."""

    name = "mlflow"
    help = "a run of MLflow, set by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME"
    requires = "mlflow"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Open a run; after a resume, the one that was opened before."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client, id_file = MlflowClient(), folder / "run-id"
        if id_file.exists():
            self.id = id_file.read_text()
            self.client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "flnl-bench")
        existing = self.client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self.client.create_experiment(name)
        self.id = self.client.create_run(experiment, run_name=run.config.title).info.run_id
        id_file.write_text(self.id)
        self.client.log_batch(
            self.id, params=[Param(key, str(value)) for key, value in run.config.flat().items()]
        )
        for row in rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        self._log(numbers(row), row["round"])

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        if summary:
            self._log({f"summary/{k}": v for k, v in numbers(summary).items()}, summary["rounds"] - 1)
        names = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.id, names[status])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(self.id, metrics=[Metric(k, float(v), now, step) for k, v in values.items()])


class WeightsAndBiases(Tracker):
    """Logs options and numbers to Weights & Biases: online, or offline with WANDB_MODE=offline."""

    name = "wandb"
    help = "a run of Weights & Biases, set by WANDB_PROJECT and WANDB_MODE"
    requires = "wandb"

    def start(self, run: RunRecord, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Open a run; after a resume, the one that was opened before."""
        import wandb

        id_file = folder / "run-id"
        resumes = id_file.exists()
        number = id_file.read_text() if resumes else secrets.token_hex(4)
        id_file.write_text(number)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "flnl-bench"),
            id=number,
            name=run.config.title,
            config=run.config.flat(),
            dir=str(folder),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        for row in () if resumes else rounds:
            self.round(row)

    def round(self, row: Mapping[str, Any]) -> None:
        self.run.log(numbers(row), step=row["round"])

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        self.run.summary.update({f"summary/{key}": value for key, value in numbers(summary).items()})
        self.run.finish(exit_code=0 if status == "done" else 1)


# -- the registry ------------------------------------------------------------------------------------
def check_tracker(entry: object) -> None:
    """Refuse an entry that is not a tracker class that could be used."""
    if not (isinstance(entry, type) and issubclass(entry, Tracker) and hasattr(entry, "name")):
        raise BadInput(f"{entry!r} is not a Tracker class with a name")
    check_name(entry.__name__, entry.name, getattr(entry, "help", None))
    if not isinstance(entry.requires, str):
        raise BadInput(f"{entry.__name__}.requires must be the name of a module, not {entry.requires!r}")


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker", "flnl_register_trackers", check_tracker, (TensorBoard, MLflow, WeightsAndBiases)
)


def find_tracker(name: str) -> type[Tracker]:
    """Return the tracker of this name, or refuse it if its library is not installed."""
    tracker = TRACKERS.find(name)
    if tracker.requires and not _is_installed(tracker.requires):
        package = f"'flnl-bench[{name}]'" if name in TRACKERS else tracker.requires
        raise BadInput(f"tracker {name!r} needs {tracker.requires}: pip install {package}")
    return tracker


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


# -- the trackers of a run ---------------------------------------------------------------------------
def warn_in_python(text: str) -> None:
    """Warn users of the library through Python's warnings."""
    warnings.warn(text, stacklevel=2)


class Tracking:
    """Hands copies of everything to the trackers of a run; one that fails is reported once and dropped."""

    def __init__(self, names: Sequence[str], warn: Warn) -> None:
        self.warn = warn
        self.active: dict[str, Tracker] = {}
        for name in names:
            with self._isolated(name, "start"):
                self.active[name] = find_tracker(name)()

    def start(self, run: RunRecord, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Report the start of a run, or its resume after `rounds`; each tracker gets a folder of its own."""
        for name, tracker in list(self.active.items()):
            with self._isolated(name, "start"):
                folder = run.folder / "trackers" / name
                folder.mkdir(parents=True, exist_ok=True)
                tracker.start(copy.deepcopy(run), folder, copy.deepcopy(list(rounds)))

    def round(self, row: Mapping[str, Any]) -> None:
        """Report a finished round."""
        for name, tracker in list(self.active.items()):
            with self._isolated(name, "round"):
                tracker.round(copy.deepcopy(row))

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Report the end of the run, or its stop for now."""
        for name, tracker in list(self.active.items()):
            with self._isolated(name, "end"):
                tracker.end(status, copy.deepcopy(summary))

    @contextlib.contextmanager
    def _isolated(self, name: str, event: str) -> Iterator[None]:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result
                yield
        except (Exception, SystemExit) as error:
            self.active.pop(name, None)
            self.warn(f"tracker {name!r} failed at {event} and is not used any more: {one_line(error)}")
