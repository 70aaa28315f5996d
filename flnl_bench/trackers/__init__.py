"""Trackers show runs elsewhere while they are running: TensorBoard, MLflow, Weights & Biases, or your own."""

from __future__ import annotations

import importlib.util

from flnl_bench.errors import BadInput
from flnl_bench.registry import Registry, check_name
from flnl_bench.trackers.mlflow import MLflow
from flnl_bench.trackers.tensorboard import TensorBoard
from flnl_bench.trackers.tracker import Tracker, numbers
from flnl_bench.trackers.wandb import WeightsAndBiases


def check_tracker(entry: object) -> None:
    """Refuse what is not a tracker class that could be used."""
    if not (isinstance(entry, type) and issubclass(entry, Tracker) and hasattr(entry, "name")):
        raise BadInput(f"{entry!r} is not a Tracker class with a name")
    check_name(entry.__name__, entry.name, getattr(entry, "help", None))
    if not isinstance(entry.requires, str):
        raise BadInput(f"{entry.__name__}.requires must be the name of a module, not {entry.requires!r}")


def find_tracker(name: str) -> type[Tracker]:
    """The tracker of this name, if all that it needs is installed."""
    tracker = TRACKERS.find(name)
    if tracker.requires and not _is_there(tracker.requires):
        own = f"pip install 'flnl-bench[{name}]'" if name in TRACKERS else f"pip install {tracker.requires}"
        raise BadInput(f"tracker {name!r} needs {tracker.requires}: {own}")
    return tracker


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker", "flnl_register_trackers", check_tracker, (TensorBoard, MLflow, WeightsAndBiases)
)

__all__ = ["TRACKERS", "Tracker", "find_tracker", "numbers"]
