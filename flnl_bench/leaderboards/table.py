"""The numbers of a table: means, deviations, averages, ranks, best and second."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flnl_bench.leaderboards.comparability import Group, MethodRuns, Protocol, scored, setting_key
from flnl_bench.leaderboards.cost import RowCost, row_cost
from flnl_bench.leaderboards.metrics import METRICS, Metric

BEST, SECOND = "best", "second"


@dataclass(frozen=True)
class Cell:
    """A number over seeds."""

    mean: float
    std: float | None  # sample standard deviation (ddof 1), from two seeds on
    values: Mapping[int, float]  # by seed; empty if the seeds of an average differ
    count: int  # seeds behind the number


@dataclass(frozen=True)
class Row:
    """A method, or a method with one of several sets of hyper-parameters."""

    method: str
    label: str
    hyperparameters: Mapping[str, Any]
    cells: Mapping[str, Cell]  # by setting
    average: Cell | None  # over the scored settings, if the row has all of them
    ranks: Mapping[str, float]  # by setting, among the rows that have all scored settings
    rank: float | None  # the mean of these
    changed: Mapping[str, Any] | None  # hyper-parameters not as the preset has them; None: not said
    cost: RowCost
    version: int = 1  # of the method
    codes: int = 0  # different codes of the method that have made its runs, as far as it is known

    @property
    def seeds(self) -> int:
        """The seeds behind Avg and rank: the fewest of the scored cells."""
        return self.average.count if self.average else 0


@dataclass(frozen=True)
class Table:
    """All rows of one protocol."""

    protocol: Protocol
    metric: str
    settings: Sequence[str]
    scored: Sequence[str]
    rows: Sequence[Row]
    scenarios: Mapping[str, Mapping[int, str]]  # fingerprints by setting and seed
    imported: Mapping[str, int]  # runs by the file they came from
    alarms: Sequence[str] = ()  # rows whose runs were made by different code

    @property
    def seeds(self) -> int:
        """The most seeds of a cell."""
        return max(cell.count for row in self.rows for cell in row.cells.values())

    @property
    def seed_sets(self) -> list[tuple[int, ...]]:
        """The seeds of the cells that have the most; more than one set is worth a warning."""
        cells = [cell for row in self.rows for cell in row.cells.values() if cell.count == self.seeds]
        return sorted({tuple(sorted(cell.values)) for cell in cells})


def make_table(group: Group, metric: str) -> Table:
    """The table of the runs of a group that have the metric; a row of which none has it is left out."""
    by = METRICS[metric]
    having = [(runs, row) for runs in group.rows if (row := _cells(runs, by))]
    cells = [row for _, row in having]
    settings = sorted({name for row in cells for name in row}, key=setting_key)
    over = scored(cells)
    averages = [_average(row, over) for row in cells]
    ranks = _ranks(cells, over, by)
    rows = [
        Row(
            runs.method,
            runs.label,
            runs.hyperparameters,
            row,
            average,
            places,
            _mean_rank(places),
            runs.changed,
            row_cost(run for seeds in runs.cells.values() for run in seeds.values()),
            runs.version,
            runs.codes,
        )
        for (runs, row), average, places in zip(having, averages, ranks, strict=True)
    ]
    scenarios: dict[str, dict[int, str]] = {setting: {} for setting in settings}
    for run in group.runs:
        if run.setting in scenarios:
            scenarios[run.setting][run.seed] = run.fingerprint
    imported = Counter(run.imported for run in group.runs if run.imported)
    alarms = [told for runs in group.rows if (told := runs.alarm(group.protocol))]
    return Table(group.protocol, metric, settings, over, rows, scenarios, imported, alarms)


def over_seeds(values: Mapping[int, float]) -> Cell:
    """Mean and sample standard deviation over seeds."""
    numbers = list(values.values())
    std = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Cell(statistics.fmean(numbers), std, dict(sorted(values.items())), len(numbers))


def _cells(runs: MethodRuns, metric: Metric) -> dict[str, Cell]:
    found = {}
    for setting, seeds in runs.cells.items():
        values = {seed: value for seed, run in seeds.items() if (value := metric.of(run)) is not None}
        if values:
            found[setting] = over_seeds(values)
    return found


def _average(cells: Mapping[str, Cell], over: Sequence[str]) -> Cell | None:
    """The mean over settings; its deviation is that of the per-seed means, if all have the same seeds."""
    if not all(name in cells for name in over):
        return None
    chosen = [cells[name] for name in over]
    if len({tuple(cell.values) for cell in chosen}) == 1:
        seeds = chosen[0].values
        return over_seeds({seed: statistics.fmean(cell.values[seed] for cell in chosen) for seed in seeds})
    return Cell(statistics.fmean(c.mean for c in chosen), None, {}, min(c.count for c in chosen))


def _ranks(rows: Sequence[Mapping[str, Cell]], over: Sequence[str], metric: Metric) -> list[dict[str, float]]:
    """The rank of each row in each scored setting; rows without all of them are not ranked."""
    ranks: list[dict[str, float]] = [{} for _ in rows]
    complete = [place for place, cells in enumerate(rows) if all(name in cells for name in over)]
    for setting in over:
        means = [metric.sign * rows[place][setting].mean for place in complete]
        for place, rank in zip(complete, rank_column(means, metric.digits), strict=True):
            ranks[place][setting] = rank
    return ranks


def _mean_rank(ranks: Mapping[str, float]) -> float | None:
    return statistics.fmean(ranks.values()) if ranks else None


def rank_column(means: Sequence[float], digits: int = 2) -> list[float]:
    """1 for the highest; numbers that print equal share the mean of their places."""
    shown = [round(mean, digits) for mean in means]
    return [1 + sum(o > m for o in shown) + (shown.count(m) - 1) / 2 for m in shown]


def marks(table: Table) -> list[dict[str, str]]:
    """BEST and SECOND in each row, by column: the settings, Avg and rank."""
    metric = METRICS[table.metric]
    cells = [{**row.cells, "Avg": row.average} for row in table.rows]
    columns: dict[str, list[tuple[float, int] | None]] = {
        name: [(metric.sign * cell.mean, cell.count) if (cell := row.get(name)) else None for row in cells]
        for name in (*table.settings, "Avg")
    }
    columns["rank"] = [(-row.rank, row.seeds) if row.rank else None for row in table.rows]
    marked = {
        name: mark_column(numbers, 2 if name == "rank" else metric.digits)
        for name, numbers in columns.items()
    }
    return [{name: marked[name][place] for name in columns} for place in range(len(table.rows))]


def mark_column(numbers: Sequence[tuple[float, int] | None], digits: int = 2) -> list[str]:
    """BEST for the highest, SECOND for the next, of numbers with their counts of seeds.

    Only those over the most seeds compete; if that is one number, nothing is marked.
    """
    most = max((number[1] for number in numbers if number), default=0)
    shown = [round(number[0], digits) if number and number[1] == most else None for number in numbers]
    places = sorted({value for value in shown if value is not None}, reverse=True)
    if sum(value is not None for value in shown) < 2:
        return [""] * len(shown)
    names = dict(zip(places, (BEST, SECOND), strict=False))
    return ["" if value is None else names.get(value, "") for value in shown]
