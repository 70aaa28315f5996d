"""How many seeds a suite needs to show a difference between its methods, and what they cost."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig, key_of
from flnl_bench.errors import BadInput, require
from flnl_bench.leaderboards.comparability import setting_key
from flnl_bench.leaderboards.pandas_api import load_results
from flnl_bench.leaderboards.render import AVERAGE
from flnl_bench.leaderboards.statistics import (
    detectable_difference,
    paired_spread,
    seeds_needed,
    spread_at_most,
)
from flnl_bench.leaderboards.table import Row, Table, make_tables
from flnl_bench.results.run_record import RunRecord
from flnl_bench.suite.api import plan_runs
from flnl_bench.suite.grid import PlannedRun


@dataclass(frozen=True)
class SeedPlan:
    """The seeds that one setting needs, or the average over all settings of a table of the suite."""

    table: str
    setting: str  # or Avg
    methods: int  # of the suite that have pilot runs
    pilot_seeds: int
    spread: float  # standard deviation over seeds of the difference of two methods, in points
    detectable: float | None  # with the seeds of the suite; None: it has one
    seeds: int | None  # that are needed; None: more than 100,000
    seeds_at_most: int | None  # the same with the 90 % upper bound of the spread
    core_hours: float | None  # of all methods with these seeds; of Avg: of all settings


def plan_seeds(
    suite: str | PathLike[str] | Mapping[str, Any],
    difference: float,
    pilot: str | PathLike[str] = "results/runs",
    *,
    device: str = "auto",
) -> list[SeedPlan]:
    """Return how many seeds show a difference of so many points between the methods of a suite.

    A difference is shown if a paired t-test at 5 % finds it in 80 % of all cases. The spread over seeds and
    the seconds of a run come from finished runs of the suite's protocols: pilot runs, and published ones.

    Args:
        suite: the name of a suite of this package, a suite file, or its content as a dictionary.
        difference: in points of last-10 accuracy.
        pilot: the folder of finished runs.
        device: "auto", "cpu", "cuda" or "mps": the device of the runs.
    """
    good = type(difference) in (int, float) and 0 < difference < 100
    require(good, "difference", repr(difference), "a number of points above 0 and below 100")
    pilot = Path(pilot).expanduser()
    _, planned = plan_runs(suite, device, True, out=pilot)
    tables = make_tables(load_results(pilot, with_published=True, whole=False).finished)
    plans = []
    for table in tables:
        mine = [run for run in planned if _same_protocol(run, table)]
        plans += _plan_table(table, mine, difference) if mine else []
    if not plans:
        raise BadInput(
            f"no pilot runs in {pilot}: a setting of the suite needs finished runs of two of its methods "
            "with the same two seeds or more; run the suite with seeds = [1, 13, 42] first"
        )
    return plans


def _same_protocol(run: PlannedRun, table: Table) -> bool:
    own, other = run.config, table.protocol.config
    names = ("dataset", "partition", "preset", "device", "training")
    return all(getattr(own, name) == getattr(other, name) for name in names)


def _plan_table(table: Table, planned: Sequence[PlannedRun], difference: float) -> list[SeedPlan]:
    """Return the plans of the settings of one table, and of their average if it can be computed."""
    methods = {_method(run.config) for run in planned}
    rows = [row for row in table.rows if _method(row.config) in methods]
    settings = sorted({run.config.setting for run in planned}, key=setting_key)
    seeds = len({run.config.seed for run in planned})
    plans = []
    for setting in settings:
        if pilot := _pilot([row for row in rows if setting in row.cells], [setting]):
            hours = _core_hours([run for row in pilot[0] for run in row.runs[setting].values()])
            plans.append(_plan(table, [setting], pilot, seeds, difference, hours * len(methods)))
    complete = [row for row in rows if all(name in row.cells for name in settings)]
    if len(settings) > 1 and (pilot := _pilot(complete, settings)):
        records = [run for row in pilot[0] for name in settings for run in row.runs[name].values()]
        hours = _core_hours(records) * len(methods) * len(settings)
        plans.append(_plan(table, settings, pilot, seeds, difference, hours))
    return plans


def _method(config: RunConfig) -> tuple[object, ...]:
    return config.method, config.version, key_of(config.hyperparameters)


def _pilot(rows: Sequence[Row], settings: Sequence[str]) -> tuple[list[Row], list[int]] | None:
    """Return the finite rows that share their seeds with most others, and these seeds; None below two."""
    shared: dict[Row, tuple[int, ...]] = {}
    for row in rows:
        if not any(row.cells[name].diverged for name in settings):
            shared[row] = tuple(sorted(set.intersection(*(set(row.cells[name].values) for name in settings))))
    counts = Counter(seeds for seeds in shared.values() if len(seeds) > 1)
    usual = max(counts, key=lambda seeds: (counts[seeds], len(seeds)), default=())
    same = [row for row in shared if shared[row] == usual]
    return (same, list(usual)) if len(same) > 1 and usual else None


def _plan(
    table: Table,
    settings: Sequence[str],
    pilot: tuple[list[Row], list[int]],
    seeds: int,
    difference: float,
    hours: float,
) -> SeedPlan:
    """Return the plan of one setting or of the average of several; `hours` are core-hours of one seed."""
    import numpy as np

    rows, shared = pilot
    values = [
        [statistics.fmean(row.cells[name].values[seed] for name in settings) for seed in shared]
        for row in rows
    ]
    spread = paired_spread(np.array(values))
    needed = seeds_needed(spread, difference)
    freedom = (len(rows) - 1) * (len(shared) - 1)
    return SeedPlan(
        table=table.protocol.title,
        setting=settings[0] if len(settings) == 1 else AVERAGE,
        methods=len(rows),
        pilot_seeds=len(shared),
        spread=spread,
        detectable=detectable_difference(spread, seeds) if seeds > 1 else None,
        seeds=needed,
        seeds_at_most=seeds_needed(spread_at_most(spread, freedom), difference),
        core_hours=None if needed is None else needed * hours,
    )


def _core_hours(records: Sequence[RunRecord]) -> float:
    """Return the mean core-hours of a run, the mean over methods of the means of their runs."""
    hours: dict[str, list[float]] = defaultdict(list)
    for record in records:
        threads = int(record.provenance.get("threads") or 1)
        hours[record.config.method].append(record.result().seconds * threads / 3600)
    return statistics.fmean(map(statistics.fmean, hours.values()))
