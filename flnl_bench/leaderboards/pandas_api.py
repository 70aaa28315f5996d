"""Results as pandas frames, and a leaderboard from a folder, from results or from a filtered frame.

pandas is imported where a frame is asked for: the command line makes leaderboards without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.config import NAMES, plain
from flnl_bench.errors import BadInput, require
from flnl_bench.leaderboards.leaderboard import Leaderboard, make_leaderboard
from flnl_bench.leaderboards.metrics import check_metric
from flnl_bench.leaderboards.runs import METRICS, FinishedRun, Found, read_runs
from flnl_bench.results.published import published_folder
from flnl_bench.results.run_folder import RunFolder, flat_round
from flnl_bench.results.run_record import Summary

if TYPE_CHECKING:
    import pandas as pd

_SPREAD = {"training": "training_", "hyperparameters": "hyper_"}  # how the columns of their values begin
_FIELDS = {f.name: f for f in dataclasses.fields(FinishedRun) if f.name not in ("path", "values", "summary")}
_OPTIONAL = {name for name, field in _FIELDS.items() if "None" in str(field.type)}
_NEEDED = ["run_dir", *METRICS, *_FIELDS]
_SUMMARY = [f.name for f in dataclasses.fields(Summary) if f.name not in METRICS]


@dataclass(frozen=True, repr=False)
class Results:
    """The runs of a results folder, as `load_results` finds them; frames are made when they are asked for."""

    folder: Path
    found: Found

    @property
    def problems(self) -> Mapping[Path, str]:
        """Files that could not be read, and why."""
        return self.found.problems

    @property
    def unfinished(self) -> Mapping[Path, str]:
        """Folders of runs that are not done, by status: running, interrupted or failed."""
        return self.found.unfinished

    @functools.cached_property
    def runs(self) -> pd.DataFrame:
        """One row a finished run."""
        return runs_frame(self.found.runs)

    @functools.cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round of all finished runs; their files are read now."""
        return rounds_frame(self.runs)

    def rounds_of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One row a round of some of the runs, where reading all would take long."""
        return rounds_frame(runs)

    def __repr__(self) -> str:
        counts = {"finished": self.found.runs, "unfinished": self.unfinished, "unreadable": self.problems}
        told = ", ".join(f"{len(those)} {what}" for what, those in counts.items())
        return f"<Results of {self.folder}: {told}>"


def load_results(folder: str | os.PathLike[str], *, with_published: bool = False) -> Results:
    """Read the run.json of every run below a folder: `.runs` and `.rounds` are frames of them.

    Args:
        folder: Where runs are; with published runs it need not be there.
        with_published: Add the runs that this package ships, but those that were made here as well.
    """
    require(isinstance(folder, str | os.PathLike), "folder", repr(folder), "the path of a results folder")
    if not with_published:
        check_folder(Path(folder))
    found = read_runs(Path(folder)) if Path(folder).is_dir() else Found()
    if with_published:
        own, ours = {run.identity for run in found.runs}, read_runs(published_folder())
        left = [run for run in ours.runs if run.identity not in own]
        code = _code_of({run.method for run in found.runs if run.sources} & {run.method for run in left})
        found.runs += [
            dataclasses.replace(run, sources=code.get((run.method, run.version), frozenset()), published=True)
            for run in left
        ]
        found.problems |= ours.problems
    return Results(Path(folder), found)


def _code_of(methods: Set[str]) -> dict[tuple[str, int], frozenset[str]]:
    """The digests of methods as they are installed, by name and version.

    They stand for the code of published runs: it is often another one by now, but golden numbers vouch for
    a version of a method. So a user's run is flagged beside them if its own code is not the installed one.
    """
    if not methods:
        return {}
    # They need torch, which other tables do without.
    from flnl_bench.methods import default_methods
    from flnl_bench.results.provenance import method_digest

    digests = {}
    for method in methods:
        with contextlib.suppress(BadInput):  # its plugin is not installed
            cls = default_methods().method_class(method)
            digests[method, cls.version] = frozenset(filter(None, [method_digest(cls)]))
    return digests


def leaderboard(
    source: Results | pd.DataFrame | str | os.PathLike[str],
    metric: str = METRICS[0],
    datasets: str | Sequence[str] | None = None,
    presets: str | Sequence[str] | None = None,
    against: str | None = None,
    paper: bool = False,
    *,
    methods: str | Sequence[str] | None = None,
    settings: str | Sequence[str] | None = None,
    partitions: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
) -> Leaderboard:
    """Tables of all finished runs: methods × settings, mean ± standard deviation over seeds.

    Args:
        source: Results, a frame of runs as they have it (also a part of it), or a results folder.
        metric: last10 (mean of the last ten rounds), best (the best round), what methods knew after the
            last round (memorised, sieve_f_score, noise_ratio_correlation, …), or cost.
        datasets: Only these data sets.
        presets: Only these presets.
        against: Add paired differences to this method, with confidence interval and test.
        paper: Put the paper's numbers beside ours, with the difference and the agreement of the orders.
        methods: Only these methods.
        settings: Only these settings.
        partitions: Only these partitions.
        seeds: Only these seeds, say those that your own runs have.
    """
    check_metric(metric)
    if isinstance(source, str | os.PathLike):
        source = load_results(source)
    where = f"below {source.folder}" if isinstance(source, Results) else "in this frame"
    found = source.found if isinstance(source, Results) else Found(_runs_in(source))
    if not found.runs:
        raise BadInput(f"there is no finished run {where}")
    only = {"dataset": datasets, "partition": partitions, "setting": settings, "preset": presets}
    names = {what: _names(given) for what, given in {**only, "method": methods}.items()}
    seeds = () if seeds is None else plain(seeds)
    several = [plain(seed) for seed in ([seeds] if isinstance(seeds, int | float) else seeds)]
    require(all(type(seed) is int for seed in several), "seeds", repr(several), "whole numbers")
    wanted: dict[str, Sequence[str | int]] = {**names, "seed": several}
    return make_leaderboard(found, metric, only=wanted, against=against, paper=paper)


def check_folder(folder: Path) -> None:
    """An error that says what to do if there are no results."""
    if not folder.is_dir():
        raise BadInput(f"there is no results folder {folder} (`flnl-bench run` makes results/runs)")


def _names(names: str | Sequence[str] | None) -> Sequence[str]:
    return [names] if isinstance(names, str) else names or ()


# -- runs --------------------------------------------------------------------------------------------
def runs_frame(runs: Iterable[FinishedRun]) -> pd.DataFrame:
    """One row a run; `training` and `hyperparameters` are there whole, and each of their values alone."""
    import pandas as pd

    rows = [_run_row(run) for run in runs]
    return pd.DataFrame(rows, columns=None if rows else _NEEDED)


def _run_row(run: FinishedRun) -> dict[str, Any]:
    fields = {name: getattr(run, name) for name in _FIELDS}
    spread = {name: fields.pop(name) for name in _SPREAD}  # long to look at, so they come last
    identity = {name: fields.pop(name) for name in NAMES}
    row = {**identity, **run.summary, **run.values, **fields, "run_dir": str(run.path), **spread}
    for name, begin in _SPREAD.items():
        row |= {f"{begin}{key}": value for key, value in spread[name].items()}
    return row


def _runs_in(frame: pd.DataFrame) -> list[FinishedRun]:
    """The runs of a frame, or of what a user has left of it."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise BadInput(f"a leaderboard is made of results, a frame of runs or a folder, not {frame!r}")
    absent = [name for name in _NEEDED if name not in frame.columns]
    if absent:
        raise BadInput(f"this frame has no column {', '.join(absent)}; it must be one that load_results made")
    rows = frame[[*_NEEDED, *(name for name in _SUMMARY if name in frame.columns)]].to_dict("records")
    return [_run_in({name: None if pd.isna(value) else value for name, value in row.items()}) for row in rows]


def _run_in(row: dict[str, Any]) -> FinishedRun:
    """The run of one row; what is not known is None."""
    broken = [name for name in _NEEDED if row[name] is None and name not in _OPTIONAL]
    broken += [name for name in _SPREAD if not isinstance(row[name], Mapping)]  # after a way through CSV
    if broken:
        raise BadInput(f"run_dir {row['run_dir']} of this frame has no usable {', '.join(broken)}")
    values = {metric: row.pop(metric) for metric in METRICS}
    summary = {name: row.pop(name) for name in _SUMMARY if name in row}
    return FinishedRun(path=Path(row.pop("run_dir")), values=values, summary=summary, **row)


# -- rounds ------------------------------------------------------------------------------------------
def rounds_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a round of the runs of a frame, with the columns that say which run it is."""
    import pandas as pd

    rows = []
    for run in runs[[*NAMES, "run_dir"]].to_dict("records"):
        rows += [{**run, **flat_round(row)} for row in RunFolder(Path(run["run_dir"])).read_rounds()]
    return pd.DataFrame(rows, columns=None if rows else [*NAMES, "run_dir", "round"])
