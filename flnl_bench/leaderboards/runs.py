"""Finished runs of a results folder, from their run.json alone; what cannot be read is named, not counted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flnl_bench.config import key_of
from flnl_bench.errors import BadInput, unknown
from flnl_bench.results.run_folder import read_records
from flnl_bench.results.run_record import METRICS, RunRecord

R = TypeVar("R")


@dataclass(frozen=True)
class FinishedRun:
    """What the leaderboard needs of a finished run."""

    path: Path
    method: str
    dataset: str
    partition: str
    setting: str
    preset: str
    seed: int
    device: str
    version: int  # of the method
    training: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    fingerprint: str
    images: int | None  # of all clients
    generated: bool  # the scenario was made from its seed, not read from a file
    numbers: int  # NUMBERS_VERSION of the package that made it
    values: Mapping[str, float]  # by metric
    ended: str
    imported: str | None  # the file it came from
    changed: Mapping[str, Any] | None  # hyper-parameters not as preset and variant have them, if it says so
    label: str | None  # what its suite calls it
    sources: frozenset[str]  # digests of the method's code that made it, as far as they are known
    summary: Mapping[str, Any] = field(default_factory=dict)  # as recorded, with the costs
    published: bool = False  # it ships with this package

    @property
    def identity(self) -> tuple[object, ...]:
        """What a run has in common with the same run made again, whatever its folder is called."""
        values = (key_of(self.hyperparameters), key_of(self.training))
        names = (self.method, self.version, self.preset, self.device, self.numbers)
        return (*names, *values, self.fingerprint, self.seed)


@dataclass
class Found:
    """What a results folder holds."""

    runs: list[FinishedRun] = field(default_factory=list)
    unfinished: dict[Path, str] = field(default_factory=dict)  # by status: running, interrupted, failed
    problems: dict[Path, str] = field(default_factory=dict)


def read_runs(folder: Path) -> Found:
    """All runs below a folder, in the order of their names."""
    found = read_records(folder)
    runs = [finished_run(record, path) for path, record in found.done.items()]
    return Found(runs, found.unfinished, found.problems)


def finished_run(record: RunRecord, path: Path) -> FinishedRun:
    """What the leaderboard needs of the record of a finished run."""
    config, summary = record.config, record.result()
    return FinishedRun(
        path=path,
        **config.names,
        device=config.device,
        version=config.version,
        training=vars(config.training),
        hyperparameters=config.hyperparameters,
        fingerprint=record.scenario.fingerprint,
        images=record.scenario.samples,
        generated=config.scenario is None,
        numbers=record.numbers,
        values={metric: float(getattr(summary, metric)) for metric in METRICS},
        ended=record.ended or "",
        imported=str(record.imported.get("file")) if record.imported else None,
        changed=record.changed,
        label=record.label or None,
        sources=record.sources,
        summary=vars(summary),
    )


def chosen(runs: Sequence[R], only: Mapping[str, Sequence[str | int]]) -> list[R]:
    """Those whose attributes have one of the values that are given for them; no value means any."""
    only = {
        what: _as_written(what, names, {getattr(run, what) for run in runs}) for what, names in only.items()
    }
    left = [run for run in runs if all(not n or getattr(run, what) in n for what, n in only.items())]
    if not left:
        raise BadInput(
            f"no run is of this {' and this '.join(what for what, names in only.items() if names)}"
        )
    return left


def _as_written(what: str, names: Sequence[str | int], there: Set[str | int]) -> list[str | int]:
    """Names as runs have them: they may be written in every way that `run` understands."""
    found: list[str | int] = []
    for name in names:
        same = name if name in there else _in_full(what, str(name))
        if same not in there:
            raise unknown(what, str(name), map(str, there), "the results")
        found.append(same)
    return found


def _in_full(what: str, name: str) -> str:
    """The one way in which records write a name; as it is where this version does not know it."""
    # They need NumPy, which tables can do without.
    from flnl_bench.data import dataset_name
    from flnl_bench.scenario import parse_partition, parse_setting

    with contextlib.suppress(BadInput):
        if what == "setting":
            return parse_setting(name).name
        if what == "partition":
            return parse_partition(name).name
        if what == "dataset":
            return dataset_name(name)
    return name
