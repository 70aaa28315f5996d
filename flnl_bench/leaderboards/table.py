"""The tables of a leaderboard: rows of comparable runs, means, deviations, averages, ranks and marks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flnl_bench.config import RunConfig, key_of, written
from flnl_bench.engine.ledger import Sent
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.comparability import (
    Protocol,
    assumed,
    by_protocol,
    method_key,
    reasons_apart,
    scored,
    setting_key,
)
from flnl_bench.leaderboards.metrics import Metric, find_metric, mean_cost, merged_messages
from flnl_bench.leaderboards.statistics import (
    FEWEST_SETTINGS,
    detectable_difference,
    distinguishable,
    drawn_places,
    mean_std,
    paired_spread,
    resample,
    tie_letters,
)
from flnl_bench.methods import declaration, is_shipped
from flnl_bench.results.published import dispute, named
from flnl_bench.results.run_record import METRICS, RunRecord
from flnl_bench.results.verified import Status, read_status, refuted

if TYPE_CHECKING:
    from flnl_bench.leaderboards.statistics import Numbers

BEST, SECOND = "best", "second"
SORTS = ("avg", "rank", "paper", "name")  # orders of rows, next to the settings
RowRuns = dict[str, dict[int, RunRecord]]  # by setting and seed
MOST_LETTERED = 15  # rows of a table; the ties of more would need letters that nobody reads


@dataclass(frozen=True)
class Cell:
    """A number over seeds."""

    mean: float
    std: float | None  # sample standard deviation (ddof 1), from two seeds on
    values: Mapping[int, float]  # by seed; empty if the seeds of an average differ
    count: int  # seeds behind the number
    diverged: Sequence[int] = ()  # the seeds of diverged runs among them

    def score(self, metric: Metric) -> float:
        """Return the number by which cells are ranked, higher is better; -inf if a run diverged."""
        return -math.inf if self.diverged else metric.sign * self.mean


def cell_over_seeds(values: Mapping[int, float], diverged: Iterable[int] = ()) -> Cell:
    """Return mean and sample standard deviation over seeds."""
    mean, std = mean_std(values.values())
    assert mean is not None
    return Cell(mean, std, dict(sorted(values.items())), len(values), tuple(sorted(diverged)))


class Standing(NamedTuple):
    """What the seeds say about the place of a row in the order by Avg."""

    low: int  # 90 % interval of its place
    high: int
    best: float  # probability of being first
    letters: str  # rows that share one tie


@dataclass(frozen=True, eq=False)
class Row:
    """The runs of one version of a method with one set of hyper-parameters, and their numbers in a table."""

    label: str
    runs: Mapping[str, Mapping[int, RunRecord]]  # by setting and seed
    cells: Mapping[str, Cell] = field(default_factory=dict)  # by setting, of the table's metric
    average: Cell | None = None  # over the scored settings, if the row has all of them
    ranks: Mapping[str, float] = field(default_factory=dict)  # by setting, among rows that have an average

    @functools.cached_property
    def records(self) -> list[RunRecord]:
        """All runs."""
        return [record for seeds in self.runs.values() for record in seeds.values()]

    @property
    def config(self) -> RunConfig:
        """The configuration of one of the runs."""
        return self.records[0].config

    @property
    def method(self) -> str:
        """The name of the method or variant."""
        return self.config.method

    @property
    def version(self) -> int:
        """The version of the method."""
        return self.config.version

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """All hyper-parameters of the method."""
        return self.config.hyperparameters

    @property
    def changed(self) -> Mapping[str, Any]:
        """The hyper-parameters that differ from preset and variant."""
        return self.records[0].changed

    @property
    def own(self) -> bool:
        """Whether it is a method of the user, not of this package."""
        return not is_shipped(self.method)

    @property
    def elsewhere(self) -> bool:
        """Whether some of its runs are published or imported: their seconds are of another machine."""
        return any(record.published or record.imported for record in self.records)

    @property
    def title(self) -> str:
        """The label with the method's name as in its paper."""
        return (declaration(self.method).title or self.method) + self.label.removeprefix(self.method)

    @property
    def diverged(self) -> Sequence[int]:
        """The seeds of diverged runs behind Avg and rank."""
        return self.average.diverged if self.average else ()

    @property
    def rank(self) -> float | None:
        """The mean of the ranks."""
        return mean_std(self.ranks.values())[0]

    @property
    def seeds(self) -> int:
        """The seeds behind Avg and rank: the fewest of the scored cells."""
        return self.average.count if self.average else 0

    @functools.cached_property
    def cost(self) -> dict[str, float | None]:
        """The mean costs of the runs, by the names of COST_COLUMNS."""
        return mean_cost(self.records)

    @functools.cached_property
    def sent(self) -> Sent:
        """The messages that clients sent next to the weights."""
        return merged_messages(self.records)

    @functools.cached_property
    def assumes(self) -> tuple[str, ...]:
        """What the method assumes: declared, or seen in one of the runs."""
        return tuple(dict.fromkeys(key for record in self.records for key in assumed(record)))

    @functools.cached_property
    def verification(self) -> Mapping[Path, Status]:
        """The status of verification of each run, by folder."""
        return {record.folder: read_status(record) for record in self.records}

    def verified(self, records: Iterable[RunRecord]) -> Status:
        """Return the weakest status of some of the runs."""
        statuses = (self.verification[record.folder] for record in records)
        return min(statuses, key=lambda status: status.strength)

    @functools.cached_property
    def codes(self) -> int:
        """The number of versions of the method's code that made the runs, as far as it is recorded.

        Published runs do not count: their code is often older, and golden numbers guarantee that a version of
        a method keeps its numbers. Next to them, the user's runs are compared with the installed code.
        """
        own = {digest for record in self._own for digest in record.code.get("method", ())}
        if own and len(self._own) < len(self.records):
            own |= installed_code(self.config)
        return len(own)

    @property
    def _own(self) -> list[RunRecord]:
        return [record for record in self.records if not record.as_published]

    @property
    def other_code(self) -> list[str]:
        """The kinds of code other than the method's (model, noise, …) that differ between comparable runs."""
        digests: dict[tuple[str, str], set[str]] = defaultdict(set)
        for record in self._own:
            for kind, used in record.code.items():
                # Each setting may have a noise of its own.
                digests[kind, record.config.setting if kind == "noise" else ""] |= used
        return sorted({kind for (kind, _), used in digests.items() if kind != "method" and len(used) > 1})


CODE_HELP = "docs/leaderboard.md#code"
VERIFIED_HELP = "docs/verification.md"


def installed_code(config: RunConfig) -> set[str]:
    """Return the digest of the installed method if it has the version of a run; else nothing."""
    # They need torch, which other tables do without.
    from flnl_bench.methods import default_methods
    from flnl_bench.results.provenance import method_digest

    with contextlib.suppress(BadInput):  # its plugin is not installed
        cls = default_methods().method_class(config.method)
        if cls.version == config.version:
            return {digest} if (digest := method_digest(cls)) else set()
    return set()


@dataclass(frozen=True, eq=False)
class Table:
    """All rows of one protocol, with the numbers of one metric."""

    protocol: Protocol
    metric: str
    rows: Sequence[Row]
    left_out: Sequence[str] = ()  # runs that are not counted, because a later one has other numbers
    row_notes: Sequence[str] = ()  # why a method has several rows
    averaged: Sequence[str] = ()  # the settings that a user chose for Avg and rank

    def of(self, metric: str, averaged: Sequence[str] | None = None) -> Table:
        """Return the same runs with the numbers of another metric, without the rows that have none.

        Avg and rank are over the same settings as before, or over the given ones.
        """
        averaged = self.averaged if averaged is None else averaged
        rows = _numbered(self.rows, find_metric(metric), averaged)
        return dataclasses.replace(self, metric=metric, rows=rows, averaged=averaged)

    def sorted(self, by: str) -> Table:
        """Return the rows in another order: the best first, diverged rows and those without number last.

        Args:
            by: one of SORTS or a setting. Rows that a setting or Avg does not order keep the paper's order.
        """
        metric = find_metric(self.metric)

        def number(row: Row) -> float:
            if by == "rank":
                return row.rank if row.rank and not row.diverged else math.inf
            cell = row.average if by == "avg" else row.cells.get(by)
            return -cell.score(metric) if cell else math.inf

        rows = sorted(self.rows, key=lambda row: (method_key(row.method), row.label))
        if by == "name":
            rows.sort(key=lambda row: row.label)
        elif by != "paper":
            rows.sort(key=lambda row: (number(row), row.average is None))
        return dataclasses.replace(self, rows=rows)

    @functools.cached_property
    def settings(self) -> list[str]:
        """The columns."""
        return sorted({name for row in self.rows for name in row.cells}, key=setting_key)

    @functools.cached_property
    def scored(self) -> list[str]:
        """The settings that Avg and rank are over."""
        return list(self.averaged) or scored(row.cells for row in self.rows)

    @functools.cached_property
    def shown_ranks(self) -> Counter[str]:
        """How many rows have each rank, as it is printed."""
        return Counter(f"{row.rank:.2f}" for row in self.rows if row.rank is not None)

    @functools.cached_property
    def seeds(self) -> int:
        """The most seeds of a cell."""
        return max(cell.count for row in self.rows for cell in row.cells.values())

    @functools.cached_property
    def seed_sets(self) -> list[tuple[int, ...]]:
        """The seeds of the cells that have the most; more than one set is worth a warning."""
        cells = [cell for row in self.rows for cell in row.cells.values() if cell.count == self.seeds]
        return sorted({tuple(cell.values) for cell in cells})

    def scores(self, rows: Sequence[Row], settings: Sequence[str]) -> Numbers:
        """Return numbers of rows, higher is better, [rows, settings, seeds]; NaN where there is no run."""
        import numpy as np

        sign = find_metric(self.metric).sign
        names = {name: sorted({seed for row in rows for seed in _values(row, name)}) for name in settings}
        values = np.full((len(rows), len(settings), max(map(len, names.values()), default=0)), np.nan)
        for i, row in enumerate(rows):
            for j, name in enumerate(settings):
                for k, seed in enumerate(names[name]):
                    values[i, j, k] = sign * _values(row, name).get(seed, np.nan)
        return values

    @functools.cached_property
    def standings(self) -> Mapping[str, Standing]:
        """What the seeds say about the places of the rows that have an Avg, by label.

        Of few settings a row needs two seeds each: one shows no noise, and would seem exact. Diverged rows
        share the last places. Empty if there are fewer than two rows, or no noise is known.
        """
        least = 1 if len(self.scored) >= FEWEST_SETTINGS else 2
        ranked = [
            row
            for row in self.rows
            if row.average and all(len(_values(row, setting)) >= least for setting in self.scored)
        ]
        finite = [row for row in ranked if not row.diverged]
        draws = resample(self.scores(finite, self.scored)) if len(ranked) > 1 and finite else None
        if draws is None:
            return {}
        low, high, best = (values.tolist() for values in drawn_places(draws))
        order = sorted(range(len(finite)), key=lambda place: -draws.means[place])
        lettered = len(order) <= MOST_LETTERED
        letters = tie_letters(order, distinguishable(draws)) if lettered else dict.fromkeys(order, "")
        standings = {
            row.label: Standing(low[i], high[i], best[i], letters[i]) for i, row in enumerate(finite)
        }
        last = Standing(len(finite) + 1, len(ranked), 0.0, "")
        return {row.label: standings.get(row.label, last) for row in ranked}

    @functools.cached_property
    def detectable(self) -> Mapping[str, float]:
        """The smallest true difference of two rows that the seeds of each setting are likely to show."""
        found = {}
        for setting in self.settings:
            rows = [row for row in self.rows if (cell := row.cells.get(setting)) and not cell.diverged]
            sets = Counter(tuple(row.cells[setting].values) for row in rows)
            usual = max(sets, key=lambda seeds: (sets[seeds], len(seeds)), default=())
            same = [row for row in rows if tuple(row.cells[setting].values) == usual]
            if len(same) > 1 and len(usual) > 1:
                spread = paired_spread(self.scores(same, [setting])[:, 0])
                found[setting] = detectable_difference(spread, len(usual))
        return found

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

    @functools.cached_property
    def alarms(self) -> list[str]:
        """Warnings about numbers that should not be in one table, each in one line."""
        alarms = []
        if mixed := [row.label for row in self.rows if row.codes > 1]:
            alarms.append(f"not comparable: different code made the runs of {named(mixed)} ({CODE_HELP})")
        if text := dispute(self.records):
            alarms.append(text)
        if wrong := [r.config.title for r in self.records if refuted(r)]:
            alarms.append(f"cannot be right by `flnl-bench verify`: {named(wrong)} ({VERIFIED_HELP})")
        return alarms

    @property
    def diverged_warnings(self) -> list[str]:
        """A warning for each row with diverged runs."""
        return [
            f"{row.label} diverged: {', '.join(names)}"
            for row in self.rows
            if (
                names := [
                    f"{record.config.setting} seed {record.config.seed}"
                    for record in row.records
                    if record.diverged
                ]
            )
        ]

    @property
    def left_out_warnings(self) -> list[str]:
        """A warning that names the runs that were left out, if there are any."""
        reason = "left out, because the same run is there with other numbers"
        return [f"{reason}: {'; '.join(self.left_out)}"] if self.left_out else []


def _values(row: Row, setting: str) -> Mapping[int, float]:
    return row.cells[setting].values if setting in row.cells else {}


# -- grouping ----------------------------------------------------------------------------------------
def make_rows(records: Iterable[RunRecord]) -> tuple[list[Row], list[str], list[str]]:
    """Group the runs of one protocol.

    Returns:
        The rows in their order, with at most one run per setting and seed; the runs that were left out for a
        later one with other numbers; a note for each method that has several rows without changed values.
    """
    rows: dict[tuple[object, ...], RowRuns] = {}
    left_out: list[str] = []
    for record in records:
        config = record.config
        row = rows.setdefault((config.method, config.version, key_of(config.hyperparameters)), {})
        seeds = row.setdefault(config.setting, {})
        other = seeds.setdefault(config.seed, record)
        if other is record:
            continue
        later, earlier = (record, other) if (record.ended or "") > (other.ended or "") else (other, record)
        seeds[config.seed] = later
        if any(getattr(later, metric) != getattr(earlier, metric) for metric in METRICS):
            left_out.append(f"{earlier.folder} ({later.folder} ended later)")
    labelled, notes = _labelled([Row("", runs) for runs in rows.values()])
    return sorted(labelled, key=lambda row: (method_key(row.method), row.label)), left_out, notes


def _labelled(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Label rows by the changed hyper-parameters, or by those that differ if that does not separate them."""
    methods: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        methods[row.method, row.version].append(row)
    versions: dict[str, list[int]] = defaultdict(list)
    for method, version in sorted(methods):
        versions[method].append(version)
    labelled, notes = [], []
    for (method, version), same_method in methods.items():
        labels = [_changed_label(row) for row in same_method]
        if len(set(labels)) < len(labels):
            names = list(dict.fromkeys(name for row in same_method for name in row.hyperparameters))
            differ = [
                name
                for name in names
                if len({key_of({name: row.hyperparameters.get(name)}) for row in same_method}) > 1
            ]
            notes.append(f"{method} has {len(labels)} rows, because of different {', '.join(differ)}")
            labels = [
                f"{method} {written({name: row.hyperparameters.get(name, '–') for name in differ})}"
                for row in same_method
            ]
        suffix = f" v{version}" if version > 1 and len(versions[method]) > 1 else ""
        labelled += [Row(label + suffix, row.runs) for label, row in zip(labels, same_method, strict=True)]
    notes += [
        f"{method} has rows of its versions {', '.join(map(str, several))}"
        for method, several in versions.items()
        if len(several) > 1
    ]
    return labelled, notes


def _changed_label(row: Row) -> str:
    """Name a row by its suite's label or by the changed hyper-parameters."""
    if not row.changed:
        return row.method
    label = next((record.label for record in row.records if record.label), row.method)
    if label == row.method:
        return f"{row.method} {written(row.changed)}"
    return label if label.startswith(row.method) else f"{row.method} [{label}]"


def make_tables(records: Iterable[RunRecord], metric: str = METRICS[0]) -> list[Table]:
    """Group finished runs into tables; a table without a run that has the metric is left out."""
    tables = []
    for protocol, comparable in by_protocol(records):
        rows, left_out, notes = make_rows(comparable)
        tables.append(Table(protocol, metric, rows, left_out, notes).of(metric))
    return [table for table in tables if table.rows]


def table_warnings(tables: Sequence[Table]) -> list[str]:
    """Return warnings about separate tables, left-out runs, methods with several rows, and different code."""
    places: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        places[table.protocol.place].append(table)
    warnings = []
    for place, separate in places.items():
        if len(separate) > 1:
            reasons = " and ".join(reasons_apart([table.protocol for table in separate]))
            names = " | ".join(f"{table.protocol.name} ({len(table.records)} runs)" for table in separate)
            warnings.append(f"{place}: {len(separate)} tables, because {reasons} differ: {names}")
    for table in tables:
        texts = (*table.left_out_warnings, *table.row_notes, *table.diverged_warnings, *table.alarms)
        warnings += [f"{table.protocol.title}: {text}" for text in texts]
    return warnings


# -- numbers -----------------------------------------------------------------------------------------
def _numbered(rows: Sequence[Row], metric: Metric, averaged: Sequence[str]) -> list[Row]:
    """Return the rows that have the metric, with their cells, averages and ranks."""
    numbered = [(row, cells) for row in rows if (cells := _cells(row, metric))]
    over = averaged or scored(cells for _, cells in numbered)
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
            cells[setting] = cell_over_seeds(values, (seed for seed in values if seeds[seed].diverged))
    return cells


def _average(cells: Mapping[str, Cell], over: Sequence[str]) -> Cell | None:
    """The mean over settings; its deviation is that of the per-seed means, if all have the same seeds."""
    if not all(name in cells for name in over):
        return None
    scored_cells = [cells[name] for name in over]
    diverged = sorted({seed for cell in scored_cells for seed in cell.diverged})
    if len({tuple(cell.values) for cell in scored_cells}) == 1:
        seeds = scored_cells[0].values
        means = {seed: statistics.fmean(cell.values[seed] for cell in scored_cells) for seed in seeds}
        return cell_over_seeds(means, diverged)
    mean, fewest = statistics.fmean(c.mean for c in scored_cells), min(c.count for c in scored_cells)
    return Cell(mean, None, {}, fewest, diverged)


def _ranks(rows: Sequence[Mapping[str, Cell]], over: Sequence[str], metric: Metric) -> list[dict[str, float]]:
    """The rank of each row in each scored setting; rows without all of them are not ranked."""
    ranks: list[dict[str, float]] = [{} for _ in rows]
    complete = [place for place, cells in enumerate(rows) if all(name in cells for name in over)]
    for setting in over:
        scores = [rows[place][setting].score(metric) for place in complete]
        for place, rank in zip(complete, rank_column(scores, metric.digits), strict=True):
            ranks[place][setting] = rank
    return ranks


def rank_column(means: Sequence[float], digits: int = 2) -> list[float]:
    """Rank numbers, 1 for the highest; numbers that print equal share the mean of their places."""
    shown = [round(mean, digits) for mean in means]
    ranks, above = {}, 0
    for mean, count in sorted(Counter(shown).items(), reverse=True):
        ranks[mean] = above + (count + 1) / 2
        above += count
    return [ranks[mean] for mean in shown]


# -- best and second ---------------------------------------------------------------------------------
def mark_table(table: Table) -> list[dict[str, str]]:
    """Return BEST, SECOND or nothing for each row, by column: the settings, Avg and rank."""
    metric = find_metric(table.metric)
    cells = [{**row.cells, "Avg": row.average} for row in table.rows]
    columns: dict[str, list[tuple[float, int] | None]] = {
        name: [(cell.score(metric), cell.count) if (cell := row.get(name)) else None for row in cells]
        for name in (*table.settings, "Avg")
    }
    columns["rank"] = [
        (-math.inf if row.diverged else -row.rank, row.seeds) if row.rank else None for row in table.rows
    ]
    marked = {
        name: mark_column(numbers, 2 if name == "rank" else metric.digits)
        for name, numbers in columns.items()
    }
    return [{name: marked[name][place] for name in columns} for place in range(len(table.rows))]


def mark_column(numbers: Sequence[tuple[float, int] | None], digits: int = 2) -> list[str]:
    """Mark the highest number as BEST and the next as SECOND; numbers come with their counts of seeds.

    Only numbers over the most seeds compete; if there is only one of those, nothing is marked. Numbers that
    print equal share a mark; none is second if two are best, and the last is never second. -inf, as of a
    diverged run, competes but is not marked.
    """
    most = max((number[1] for number in numbers if number), default=0)
    shown = [round(number[0], digits) if number and number[1] == most else None for number in numbers]
    competing = [value for value in shown if value is not None]
    places = sorted({*competing}, reverse=True)
    marks = {places[0]: BEST} if len(competing) > 1 and places[0] > -math.inf else {}
    if len(places) > 2 and competing.count(places[0]) == 1 and places[1] > -math.inf:
        marks[places[1]] = SECOND
    return ["" if value is None else marks.get(value, "") for value in shown]
