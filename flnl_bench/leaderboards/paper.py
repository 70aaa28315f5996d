"""The numbers of the FedGR paper (ICML 2026), as printed; averages are computed, never copied."""

from __future__ import annotations

import csv
import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from flnl_bench.config import written
from flnl_bench.leaderboards.metrics import find_metric
from flnl_bench.leaderboards.table import Cell, Row, Table, rank_column

SOURCE = "FedGR paper (ICML 2026)"
SEEDS = 3
ABLATED_DATASET, ABLATED_METRIC = "cifar10", "last10"  # of all ablation tables


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
def _all_numbers() -> dict[tuple[str, ...], list[tuple[dict[str, float], Cell]]]:
    """Return the numbers of all tables, each with the swept values of hyper-parameters that it is for.

    Unchanged FedGR is in all ablation tables, once with other numbers: these lines have no method, because
    the main table's numbers count.
    """
    numbers: dict[tuple[str, ...], list[tuple[dict[str, float], Cell]]] = defaultdict(list)
    for key, cell in paper_numbers().items():
        numbers[key].append(({}, cell))
    text = (files(__package__) / "paper_numbers" / "ablations.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        if line["method"]:
            swept = (part.split("=") for part in line["variant"].lower().split() if "=" in part)
            cell = Cell(float(line["mean"]), float(line["std"]), {}, SEEDS)
            key = (ABLATED_DATASET, line["partition"], line["setting"], line["method"], ABLATED_METRIC)
            numbers[key].append(({name: float(value) for name, value in swept}, cell))
    return dict(numbers)


def _method_numbers(table: Table, row: Row) -> list[tuple[str, dict[str, float], Cell]]:
    """Return the paper's numbers for the method of a row: setting, swept values, number."""
    config = table.protocol.config
    return [
        (setting, values, cell)
        for setting in table.settings
        for values, cell in _all_numbers().get(
            (config.dataset, config.partition, setting, row.method, table.metric), ()
        )
    ]


def paper_cells(table: Table, row: Row) -> dict[str, Cell]:
    """Return the paper's numbers for a row, by setting; none if its hyper-parameters differ."""
    return {
        setting: cell
        for setting, values, cell in _method_numbers(table, row)
        if row.changed.keys() <= values.keys()
        and bool(row.changed) == bool(values)
        and all(row.hyperparameters.get(name) == value for name, value in values.items())
    }


def without_paper_numbers(table: Table) -> list[str]:
    """Return the rows of the paper's methods that get no number of it, each with the reason."""
    return [
        f"{row.label}: its hyper-parameters are not those of its preset ({written(row.changed)})"
        for row in table.rows
        if _method_numbers(table, row) and not paper_cells(table, row)
    ]


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
            ours.append(row.cells[setting].score(find_metric(table.metric)))
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
