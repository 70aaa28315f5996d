"""The numbers of the FedGR paper (ICML 2026), as printed; averages are computed, never copied."""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from flnl_bench.config import written
from flnl_bench.leaderboards.table import Cell, Row, Table, rank_column

SOURCE = "FedGR paper (ICML 2026)"
SEEDS = 3
ABLATED = ("cifar10", "last10")  # data set and metric of all ablation tables


@functools.lru_cache(maxsize=1)
def paper_numbers() -> dict[tuple[str, ...], Cell]:
    """Return every reported number, by data set, partition, setting, method and metric."""
    text = (files(__package__) / "paper_numbers" / "results.csv").read_text(encoding="utf-8")
    cells = {}
    for line in csv.DictReader(text.splitlines()):
        if line["mean"] and line["setting"] != "avg":  # several printed averages do not match their rows
            key = tuple(line[name] for name in ("dataset", "partition", "setting", "method", "metric"))
            cells[key] = Cell(float(line["mean"]), float(line["std"]) if line["std"] else None, {}, SEEDS)
    return cells


@functools.lru_cache(maxsize=1)
def _ablations() -> list[tuple[str, dict[str, float], str, str, Cell]]:
    """Return the numbers of the ablation tables: variant, swept values, partition, setting, number.

    Unchanged FedGR is in all of them, once with other numbers: the main table's numbers count.
    """
    text = (files(__package__) / "paper_numbers" / "ablations.csv").read_text(encoding="utf-8")
    ablations = []
    for line in csv.DictReader(text.splitlines()):
        method, values = line["method"], {}
        if "=" in line["variant"]:
            pairs = (pair.split("=") for pair in line["variant"].lower().split())
            values = {name: float(value) for name, value in pairs}
        if method != "fedgr" or values:
            cell = Cell(float(line["mean"]), float(line["std"]), {}, SEEDS)
            ablations.append((method, values, line["partition"], line["setting"], cell))
    return ablations


def paper_cells(table: Table, row: Row) -> dict[str, Cell]:
    """Return the paper's numbers for a row, by setting; none if its hyper-parameters differ."""
    if not _has_numbers(table, row):
        return {}
    main = {setting: cell for setting in table.settings if (cell := _main_cell(table, row, setting))}
    return main if main and not row.changed else _ablation_cells(table, row)


def _main_cell(table: Table, row: Row, setting: str) -> Cell | None:
    """Return the number of the paper's main tables for a method and setting."""
    config = table.protocol.config
    return paper_numbers().get((config.dataset, config.partition, setting, row.method, table.metric))


def _ablation_cells(table: Table, row: Row) -> dict[str, Cell]:
    """Return the numbers of the ablation tables for an unchanged variant or for swept values."""
    config = table.protocol.config
    if (config.dataset, table.metric) != ABLATED:
        return {}
    return {
        setting: cell
        for method, values, partition, setting, cell in _ablations()
        if (method, partition) == (row.method, config.partition)
        and setting in table.settings
        and (not row.changed if not values else row.changed and row.changed.keys() <= values.keys())
        and all(row.hyperparameters.get(name) == value for name, value in values.items())
    }


def without_paper_numbers(table: Table) -> list[str]:
    """Return the rows of the paper's methods that get no number of it, each with the reason."""
    return [
        f"{row.label}: its hyper-parameters are not those of its preset ({written(row.changed)})"
        for row in table.rows
        if _has_numbers(table, row) and not paper_cells(table, row)
    ]


def _has_numbers(table: Table, row: Row) -> bool:
    """Whether the paper has numbers for a row's method in this table."""
    config = table.protocol.config
    ablated = (config.dataset, table.metric) == ABLATED and any(
        (method, partition) == (row.method, config.partition) and setting in table.settings
        for method, _, partition, setting, _ in _ablations()
    )
    return ablated or any(_main_cell(table, row, setting) for setting in table.settings)


def paper_average(cells: Mapping[str, Cell], over: Sequence[str]) -> Cell | None:
    """Return the mean of the paper's row over the settings of our average."""
    if not all(name in cells for name in over):
        return None
    return Cell(statistics.fmean(cells[name].mean for name in over), None, {}, SEEDS)


def both_protocols(table: Table) -> tuple[str, bool]:
    """Name our protocol and the paper's, and say whether their numbers may be compared."""
    protocol, preset = table.protocol, table.protocol.config.preset
    ours = f"{preset} protocol{protocol.name.removeprefix(preset)}"
    if protocol.is_paper:
        return f"ours: {ours}; {SOURCE}: paper protocol", True
    return f"{ours} vs paper protocol: not comparable", False


# -- the order of the methods -----------------------------------------------------------------------
SUBSTITUTE = "cifar10"  # whose order is taken for data sets that the paper does not have
LEAST_METHODS = 3  # the order of two methods agrees by chance every second time
OVERALL = "overall"


@dataclass(frozen=True)
class Agreement:
    """How far two orders of the same methods agree: 1 the same, −1 reversed."""

    spearman: float
    kendall: float
    methods: int | None = None  # None: a mean over cells


def agreements(table: Table) -> dict[str, Agreement]:
    """Return the agreement per setting, over the unchanged methods that both have, and the mean of all."""
    cells = {}
    for setting in table.settings:
        ours, theirs = _pairs(table, setting)
        if len(ours) >= LEAST_METHODS and len(set(ours)) > 1 and len(set(theirs)) > 1:
            cells[setting] = Agreement(spearman(ours, theirs), kendall(ours, theirs), len(ours))
    return {**cells, OVERALL: overall(list(cells.values()))} if cells else {}


def overall(cells: Sequence[Agreement]) -> Agreement:
    """Return the mean over cells."""
    return Agreement(
        statistics.fmean(cell.spearman for cell in cells), statistics.fmean(cell.kendall for cell in cells)
    )


def compared_dataset(table: Table) -> str:
    """Return the data set of the paper whose order is taken."""
    own = {dataset for dataset, *_ in paper_numbers()}
    dataset = table.protocol.config.dataset
    return dataset if dataset in own else SUBSTITUTE


def _pairs(table: Table, setting: str) -> tuple[list[float], list[float]]:
    """Return our numbers and the paper's for a setting, of the unchanged methods that have both."""
    place = (compared_dataset(table), table.protocol.config.partition, setting)
    ours, theirs = [], []
    for row in table.rows:
        cell = paper_numbers().get((*place, row.method, table.metric))
        if cell is not None and setting in row.cells and not row.changed:
            ours.append(row.cells[setting].mean)
            theirs.append(cell.mean)
    return ours, theirs


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return ρ, Pearson's correlation of the ranks; ties share the mean of their places."""
    return statistics.correlation(rank_column(ours), rank_column(theirs))


def kendall(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return τ_b: pairs in the same order minus pairs in the other, corrected for ties."""
    ranks = rank_column(ours), rank_column(theirs)
    pairs = [(i, j) for i in range(len(ours)) for j in range(i)]
    left, right = ([(x[i] > x[j]) - (x[i] < x[j]) for i, j in pairs] for x in ranks)
    alike = sum(a * b for a, b in zip(left, right, strict=True))
    return alike / float((sum(map(abs, left)) * sum(map(abs, right))) ** 0.5)
