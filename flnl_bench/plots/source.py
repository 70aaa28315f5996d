"""The runs that a picture shows: from folders, results, frames or single runs, and by filters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.comparability import Names, Protocol, chosen, setting_key
from flnl_bench.leaderboards.pandas_api import Results, records_of
from flnl_bench.leaderboards.render import OWN
from flnl_bench.leaderboards.table import Row, make_tables
from flnl_bench.plots.style import for_paper
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import ROUNDS_FILE, RUN_FILE, RoundRow, RunRecord

if TYPE_CHECKING:
    import pandas as pd

    from flnl_bench.scenario import Scenario

    Source: TypeAlias = Results | RunRecord | pd.DataFrame | Scenario | str | os.PathLike[str] | Sequence[Any]

FILTERS = ("method", "dataset", "partition", "setting", "preset", "seed")
Numbers = np.ndarray[Any, Any]


class Filters(TypedDict, total=False):
    """Only the runs with one of these names; a name, or several."""

    method: Names
    dataset: Names
    partition: Names
    setting: Names
    preset: Names
    seed: Names


# -- runs --------------------------------------------------------------------------------------------
def runs_of(source: Source, filters: Mapping[str, Any], *, family: bool = False) -> list[RunRecord]:
    """Return the finished runs of a source that pass the filters; `family` adds the variants of a method."""
    records = _all_runs(source)
    if not records:
        raise BadInput(f"there is no finished run in {_source_name(source)}")
    for name in filters.keys() - {*FILTERS}:
        raise unknown("filter", name, FILTERS)
    if family and (wanted := filters.get("method")):
        methods = {record.config.method for record in records}
        wanted = [wanted] if isinstance(wanted, str) else wanted
        filters = {**filters, "method": [m for m in methods if base_of(m) in wanted] or wanted}
    return chosen(records, filters)


def base_of(method: str) -> str:
    """Return the method of a variant."""
    return method.partition("/")[0]


def _all_runs(source: Any) -> list[RunRecord]:
    if isinstance(source, Results):
        return source.finished
    if isinstance(source, RunRecord):
        _check_finished(source)
        return [source]
    if isinstance(source, str | os.PathLike):
        return _runs_below(Path(source))
    if hasattr(source, "columns"):
        return records_of(source)
    if not isinstance(source, Sequence):
        raise BadInput(f"plots are made of results, runs, frames of runs or folders, not {source!r}")
    return list({record.folder: record for part in source for record in _all_runs(part)}.values())


def _runs_below(folder: Path) -> list[RunRecord]:
    folder = folder.parent if folder.name == RUN_FILE else folder
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder} of a run or of results")
    records, problems = read_runs(folder)
    for path, problem in problems.items():
        warnings.warn(f"not drawn: {path}: {problem}", stacklevel=2)
    for record in records:
        if record.folder == folder:
            _check_finished(record)
    return [record for record in records if record.done]


def _check_finished(record: RunRecord) -> None:
    if not record.done:
        raise BadInput(f"the run in {record.folder} is not finished: its status is {record.status}")


def _source_name(source: Any) -> str:
    if isinstance(source, list | tuple):
        return ", ".join(map(_source_name, source)) or "nothing"
    return str(source) if isinstance(source, str | os.PathLike) else "this source"


# -- the files of a run ------------------------------------------------------------------------------
def whole_rounds(record: RunRecord) -> list[RoundRow]:
    """Read all rounds of a run."""
    rows, total = record.read_rounds(), record.config.training.rounds
    if len(rows) != total:
        raise BadInput(f"{record.folder / ROUNDS_FILE} has {len(rows)} whole rounds of {total}")
    return rows


def beliefs_of(record: RunRecord, *names: str) -> dict[str, Numbers] | None:
    """Read the named arrays of a run's beliefs; None if one of them is missing."""
    if not record.has_beliefs:
        return None
    arrays = record.read_beliefs((), names)
    return arrays if arrays.keys() == {*names} else None


def shown_name(row: Row) -> str:
    """Return the label of a row, or its title in a figure for a paper, marked if the method is a user's."""
    name = row.title if for_paper() else row.label
    return f"{OWN} {name}" if row.own else name


# -- panels ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Panel:
    """The rows of a leaderboard's table that have runs in one setting."""

    protocol: Protocol
    setting: str
    rows: Sequence[Row]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of its name."""
        config = self.protocol.config
        return config.dataset, config.partition, self.setting, self.protocol.name

    def label(self, what: str) -> str:
        """Return the label of an axis of costs; seconds may be of several machines."""
        elsewhere = what == "seconds" and any(row.elsewhere for row in self.rows)
        return "seconds, of several machines" if elsewhere else what

    def runs(self, row: Row) -> list[RunRecord]:
        """Return the runs of a row in this setting, in the order of their seeds."""
        return [record for _, record in sorted(row.runs[self.setting].items())]


def panels_of(records: Sequence[RunRecord]) -> list[Panel]:
    """Group comparable runs by the leaderboard's rules; warn about left-out runs and different code."""
    tables = make_tables(records)
    for table in tables:
        for text in table.left_out_warnings + table.alarms:
            warnings.warn(f"{table.protocol.title}: {text}", stacklevel=2)
    return [
        Panel(table.protocol, setting, [row for row in table.rows if setting in row.runs])
        for table in tables
        for setting in sorted({name for row in table.rows for name in row.runs}, key=setting_key)
    ]
