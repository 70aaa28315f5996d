"""Finished runs of a results folder, from their run.json alone; what cannot be read is named, not counted."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flnl_bench.config import Training
from flnl_bench.recorder.record import NEEDED, read_record

METRICS = ("last10", "best")
# An option that came later had this value in runs that do not name it.
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Training) if f.default is not dataclasses.MISSING}


@dataclass(frozen=True)
class Run:
    """What the leaderboard needs of a finished run."""

    path: Path
    method: str
    dataset: str
    partition: str
    setting: str
    preset: str
    seed: int
    device: str
    training: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    fingerprint: str
    generated: bool  # the scenario was made from its seed, not read from a file
    numbers: int  # NUMBERS_VERSION of the package that made it
    values: Mapping[str, float]  # by metric
    ended: str
    imported: str | None  # the file it came from
    changed: Mapping[str, Any] | None  # hyper-parameters not as preset and variant have them, if it says so
    label: str | None  # what its suite calls it
    summary: Mapping[str, Any] = field(default_factory=dict)  # as recorded, with the costs


@dataclass
class Found:
    """What a results folder holds."""

    runs: list[Run] = field(default_factory=list)
    unfinished: dict[Path, str] = field(default_factory=dict)  # by status: running, interrupted, failed
    problems: dict[Path, str] = field(default_factory=dict)


def read_runs(folder: Path) -> Found:
    """All runs below a folder, in the order of their names."""
    found = Found()
    for path in run_files(folder, found.problems):
        try:
            record = read_record(path)
            if record["status"] == "done":
                found.runs.append(parse(record, path.parent))
            else:
                found.unfinished[path.parent] = record["status"]
        except ValueError as problem:
            found.problems[path] = str(problem)
    return found


def run_files(folder: Path, problems: dict[Path, str]) -> Iterator[Path]:
    """Every run.json below a folder; below a run there is no other, and hidden folders are not ours."""

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = f"cannot be read ({error.strerror})"

    for place, folders, files in os.walk(folder, onerror=unreadable):
        if "run.json" in files:
            folders.clear()
            yield Path(place, "run.json")
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def parse(record: Mapping[str, Any], path: Path) -> Run:
    """A checked record of a finished run as a Run, or a ValueError."""
    config, summary = record["config"], record.get("summary")
    training = {**_DEFAULTS, **config["training"]}
    if not isinstance(summary, dict) or summary.get("rounds") != training.get("rounds"):
        raise ValueError("its status is done, but its summary is not of all rounds")
    imported, changed, label = (record.get(name) for name in ("imported", "changed", "label"))
    return Run(
        path=path,
        **{name: config[name] for name in NEEDED["config"] if name not in ("training",)},
        training=training,
        fingerprint=record["scenario"]["fingerprint"],
        generated=config.get("scenario") is None,
        numbers=record["provenance"]["numbers"],
        values={metric: _accuracy(summary.get(metric), metric) for metric in METRICS},
        ended=str(record.get("ended") or ""),
        imported=str(imported.get("file")) if isinstance(imported, dict) else None,
        changed=changed if isinstance(changed, dict) else None,
        label=label if isinstance(label, str) and label else None,
        summary=summary,
    )


def _accuracy(value: object, metric: str) -> float:
    number = float(value) if isinstance(value, int | float) else math.nan
    if not 0 <= number <= 100:
        raise ValueError(f"summary.{metric} is {value}, not a percentage")
    return number
