"""The runs that a picture is of: from folders, results, frames or single runs, and by filters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.comparability import MethodRuns, Protocol, group, setting_key
from flnl_bench.leaderboards.pandas_api import Results
from flnl_bench.leaderboards.runs import FinishedRun, chosen, finished_run
from flnl_bench.results.beliefs import read_beliefs
from flnl_bench.results.run_folder import RunFolder, read_records
from flnl_bench.results.run_record import Row
from flnl_bench.running.result import RunResult

if TYPE_CHECKING:
    import pandas as pd

    from flnl_bench.scenario import Scenario

    Source: TypeAlias = Results | RunResult | pd.DataFrame | Scenario | str | os.PathLike[str] | Sequence[Any]

Names = str | int | Iterable[str | int] | None
FILTERS = ("method", "dataset", "partition", "setting", "preset", "seed")


class Filters(TypedDict, total=False):
    """Only these runs: a name, or several of which each will do."""

    method: Names
    dataset: Names
    partition: Names
    setting: Names
    preset: Names
    seed: Names


# -- runs --------------------------------------------------------------------------------------------
def runs_of(source: Source, filters: Mapping[str, Any], *, family: bool = False) -> list[FinishedRun]:
    """The finished runs of a source that pass the filters; with its `family` a method's variants do, too."""
    runs = _all_runs(source)
    if not runs:
        raise BadInput(f"there is no finished run in {_told(source)}")
    for name in filters.keys() - {*FILTERS}:
        raise unknown("filter", name, FILTERS)
    only = {name: [_plain(value) for value in _several(filters.get(name))] for name in FILTERS}
    if family and only["method"]:
        variants = {run.method for run in runs if base_of(run.method) in only["method"]}
        only["method"] = sorted(variants) or only["method"]
    return chosen(runs, only)


def base_of(method: str) -> str:
    """The method that a variant is one of."""
    return method.partition("/")[0]


def _all_runs(source: Any) -> list[FinishedRun]:
    if isinstance(source, Results):
        return list(source.found.runs)
    if isinstance(source, RunResult):
        return [finished_run(source.record, source.folder)]
    if isinstance(source, str | os.PathLike):
        return _runs_below(Path(source))
    if hasattr(source, "columns"):
        if "run_dir" not in source.columns:
            raise BadInput("this frame has no column run_dir; it must be one that load_results made")
        source = list(source["run_dir"])
    if not isinstance(source, Sequence):
        raise BadInput(f"plots are made of results, runs, frames of runs or folders, not {source!r}")
    found = {run.path: run for part in source for run in _all_runs(part)}
    return list(found.values())


def _runs_below(folder: Path) -> list[FinishedRun]:
    folder = folder.parent if folder.name == "run.json" else folder
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder} of a run or of results")
    found = read_records(folder)
    if folder in found.unfinished:
        raise BadInput(f"the run in {folder} is not finished: its status is {found.unfinished[folder]}")
    for path, why in found.problems.items():
        warnings.warn(f"not drawn: {path}: {why}", stacklevel=2)
    return [finished_run(record, path) for path, record in found.done.items()]


def _several(names: Names) -> list[Any]:
    return [] if names is None else [names] if isinstance(names, str | int) else list(names)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value  # a seed from a frame


def _told(source: Any) -> str:
    if isinstance(source, list | tuple):
        return ", ".join(map(_told, source)) or "nothing"
    return str(source) if isinstance(source, str | os.PathLike) else "this source"


# -- what is in their folders ------------------------------------------------------------------------
def rounds_of(run: FinishedRun) -> list[Row]:
    """The rounds of a run, all of them."""
    folder = RunFolder(run.path)
    try:
        rows = folder.read_rounds()
    except ValueError as error:
        raise BadInput(f"{folder.rounds_file} does not hold rounds of flnl-bench: {error}") from None
    if len(rows) != run.training["rounds"]:
        raise BadInput(f"{folder.rounds_file} has {len(rows)} whole rounds of {run.training['rounds']}")
    return rows


def beliefs_of(run: FinishedRun, *names: str) -> dict[str, np.ndarray] | None:
    """The named arrays of a run's beliefs, or None if one of them is missing."""
    path = run.path / "beliefs.npz"
    if not path.is_file():
        return None
    arrays = read_beliefs(path, (), names)
    return arrays if arrays.keys() == {*names} else None


# -- panels ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cell:
    """The runs that share a panel: those of one cell of a leaderboard, by method and seed."""

    protocol: Protocol
    setting: str
    rows: Sequence[MethodRuns]

    @property
    def parts(self) -> tuple[str, ...]:
        """What it is called."""
        about = self.protocol
        return about.dataset, about.partition, self.setting, about.name

    def runs(self, row: MethodRuns) -> list[FinishedRun]:
        """The runs of one method, in the order of their seeds."""
        return [run for _, run in sorted(row.cells[self.setting].items())]


def cells_of(runs: Sequence[FinishedRun]) -> list[Cell]:
    """What may stand together stands together, as in the leaderboard; it says what must be said."""
    groups, told = group(runs)
    for text in told:
        if "not comparable" in text or "left out" in text:
            warnings.warn(text, stacklevel=2)
    return [
        Cell(one.protocol, setting, [row for row in one.rows if setting in row.cells])
        for one in groups
        for setting in sorted({run.setting for run in one.runs}, key=setting_key)
    ]


def titles_of(parts: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """What all panels have in common, and what each is called beside that."""
    common = [values[0] if len(set(values)) == 1 else None for values in zip(*parts, strict=True)]
    own = [" · ".join(part for part, same in zip(one, common, strict=True) if same is None) for one in parts]
    return " · ".join(part for part in common if part), own
