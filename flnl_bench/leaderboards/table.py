"""The tables of a leaderboard: means, deviations, averages, ranks, best and second."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flnl_bench.leaderboards.comparability import Protocol, by_protocol, reasons_apart, scored, setting_key
from flnl_bench.leaderboards.metrics import ALL_METRICS, Metric
from flnl_bench.leaderboards.rows import Cell, Row, make_rows, over_seeds
from flnl_bench.results.run_record import METRICS, RunRecord

BEST, SECOND = "best", "second"


@dataclass(frozen=True, eq=False)
class Table:
    """All rows of one protocol, with the numbers of one metric."""

    protocol: Protocol
    metric: str
    rows: Sequence[Row]
    left_out: Sequence[str] = ()  # runs that are not counted, because a later one has other numbers
    row_notes: Sequence[str] = ()  # why a method has several rows

    def of(self, metric: str) -> Table:
        """Return the same runs with the numbers of another metric, without the rows that have none."""
        return dataclasses.replace(self, metric=metric, rows=_numbered(self.rows, ALL_METRICS[metric]))

    @cached_property
    def settings(self) -> list[str]:
        """The columns."""
        return sorted({name for row in self.rows for name in row.cells}, key=setting_key)

    @cached_property
    def scored(self) -> list[str]:
        """The settings that Avg and rank are over."""
        return scored(row.cells for row in self.rows)

    @cached_property
    def seeds(self) -> int:
        """The most seeds of a cell."""
        return max(cell.count for row in self.rows for cell in row.cells.values())

    @cached_property
    def seed_sets(self) -> list[tuple[int, ...]]:
        """The seeds of the cells that have the most; more than one set is worth a warning."""
        cells = [cell for row in self.rows for cell in row.cells.values() if cell.count == self.seeds]
        return sorted({tuple(cell.values) for cell in cells})

    @property
    def records(self) -> list[RunRecord]:
        """All runs."""
        return [record for row in self.rows for record in row.records]

    @property
    def scenarios(self) -> dict[str, dict[int, str]]:
        """Fingerprints by setting and seed."""
        fingerprints: dict[str, dict[int, str]] = {setting: {} for setting in self.settings}
        for record in self.records:
            if record.config.setting in fingerprints:
                fingerprints[record.config.setting][record.config.seed] = record.scenario.fingerprint
        return fingerprints

    @property
    def imported(self) -> Counter[str]:
        """Runs by the file that they were imported from."""
        return Counter(file for record in self.records if (file := record.imported_from))

    @cached_property
    def alarms(self) -> list[str]:
        """A warning for each row whose runs were made by different code of the method."""
        return [alarm for row in self.rows if (alarm := row.alarm(self.protocol))]

    @property
    def left_out_warnings(self) -> list[str]:
        """A warning that names the runs that were left out, if there are any."""
        reason = "left out, because the same run is there with other numbers"
        return [f"{reason}: {'; '.join(self.left_out)}"] if self.left_out else []

    @property
    def warnings(self) -> list[str]:
        """Warnings about runs that were left out, methods with several rows, and different code."""
        texts = (*self.left_out_warnings, *self.row_notes, *self.alarms)
        return [f"{self.protocol.title}: {text}" for text in texts]


def make_tables(records: Iterable[RunRecord], metric: str = METRICS[0]) -> list[Table]:
    """Group finished runs into tables; a table without a run that has the metric is left out."""
    tables = []
    for protocol, comparable in by_protocol(records):
        rows, left_out, notes = make_rows(comparable)
        tables.append(Table(protocol, metric, rows, left_out, notes).of(metric))
    return [table for table in tables if table.rows]


def apart_warnings(tables: Sequence[Table]) -> list[str]:
    """Say which tables of one data set and partition are separate, and why."""
    places: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        places[table.protocol.place].append(table)
    warnings = []
    for place, apart in places.items():
        if len(apart) > 1:
            reasons = " and ".join(reasons_apart([table.protocol for table in apart]))
            names = " | ".join(f"{table.protocol.name} ({len(table.records)} runs)" for table in apart)
            warnings.append(f"{place}: {len(apart)} tables, because {reasons} differ: {names}")
    return warnings


# -- numbers -----------------------------------------------------------------------------------------
def _numbered(rows: Sequence[Row], metric: Metric) -> list[Row]:
    """Return the rows that have the metric, with their cells, averages and ranks."""
    numbered = [(row, cells) for row in rows if (cells := _cells(row, metric))]
    over = scored(cells for _, cells in numbered)
    ranks = _ranks([cells for _, cells in numbered], over, metric)
    return [
        dataclasses.replace(row, cells=cells, average=_average(cells, over), ranks=own_ranks)
        for (row, cells), own_ranks in zip(numbered, ranks, strict=True)
    ]


def _cells(row: Row, metric: Metric) -> dict[str, Cell]:
    cells = {}
    for setting, seeds in row.runs.items():
        values = {seed: value for seed, record in seeds.items() if (value := metric.of(record)) is not None}
        if values:
            cells[setting] = over_seeds(values)
    return cells


def _average(cells: Mapping[str, Cell], over: Sequence[str]) -> Cell | None:
    """The mean over settings; its deviation is that of the per-seed means, if all have the same seeds."""
    if not all(name in cells for name in over):
        return None
    scored_cells = [cells[name] for name in over]
    if len({tuple(cell.values) for cell in scored_cells}) == 1:
        seeds = scored_cells[0].values
        return over_seeds({s: statistics.fmean(cell.values[s] for cell in scored_cells) for s in seeds})
    mean, fewest = statistics.fmean(c.mean for c in scored_cells), min(c.count for c in scored_cells)
    return Cell(mean, None, {}, fewest)


def _ranks(rows: Sequence[Mapping[str, Cell]], over: Sequence[str], metric: Metric) -> list[dict[str, float]]:
    """The rank of each row in each scored setting; rows without all of them are not ranked."""
    ranks: list[dict[str, float]] = [{} for _ in rows]
    complete = [place for place, cells in enumerate(rows) if all(name in cells for name in over)]
    for setting in over:
        means = [metric.sign * rows[place][setting].mean for place in complete]
        for place, rank in zip(complete, rank_column(means, metric.digits), strict=True):
            ranks[place][setting] = rank
    return ranks


def rank_column(means: Sequence[float], digits: int = 2) -> list[float]:
    """Rank numbers, 1 for the highest; numbers that print equal share the mean of their places."""
    shown = [round(mean, digits) for mean in means]
    return [1 + sum(o > m for o in shown) + (shown.count(m) - 1) / 2 for m in shown]


# -- best and second ---------------------------------------------------------------------------------
def mark_table(table: Table) -> list[dict[str, str]]:
    """Return BEST, SECOND or nothing for each row, by column: the settings, Avg and rank."""
    metric = ALL_METRICS[table.metric]
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
    """Mark the highest number as BEST and the next as SECOND; numbers come with their counts of seeds.

    Only numbers over the most seeds compete; if there is only one of those, nothing is marked.
    """
    most = max((number[1] for number in numbers if number), default=0)
    shown = [round(number[0], digits) if number and number[1] == most else None for number in numbers]
    places = sorted({value for value in shown if value is not None}, reverse=True)
    if sum(value is not None for value in shown) < 2:
        return [""] * len(shown)
    names = dict(zip(places, (BEST, SECOND), strict=False))
    return ["" if value is None else names.get(value, "") for value in shown]
