"""The numbers of the FedGR paper (ICML 2026), as printed; averages are computed, never copied."""

from __future__ import annotations

import csv
import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from flnl_bench.config import written
from flnl_bench.leaderboards.metrics import find_metric
from flnl_bench.leaderboards.statistics import LEVEL, resample
from flnl_bench.leaderboards.table import Cell, Row, Table

if TYPE_CHECKING:
    from flnl_bench.leaderboards.statistics import Numbers

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
SUBSTITUTE_KIND = {"hsu": "dir"}  # of partitions: both draw shares of classes from a Dirichlet distribution
LEAST_METHODS = 3  # the order of two methods agrees by chance every second time
OVERALL = "overall"


@dataclass(frozen=True)
class Agreement:
    """How far two orders of the same methods agree: 1 the same, −1 reversed."""

    spearman: float
    kendall: float
    methods: int | None = None  # None: a mean over cells
    # With other seeds, on our side; only where every method has several and none diverged.
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def agreements(table: Table) -> dict[str, Agreement]:
    """Return the agreement per setting, over the unchanged methods that both have, and the mean of all."""
    cells = {}
    for setting in table.settings:
        rows, theirs = _pairs(table, setting)
        # As printed, so that equal numbers tie.
        ours = [round(row.cells[setting].score(find_metric(table.metric)), 2) for row in rows]
        if len(ours) >= LEAST_METHODS and len(set(ours)) > 1 and len(set(theirs)) > 1:
            rho, tau = rank_correlations([ours], theirs)
            diverged = any(row.cells[setting].diverged for row in rows)
            intervals = {} if diverged else _intervals(table.scores(rows, [setting]), theirs)
            cells[setting] = Agreement(float(rho[0]), float(tau[0]), len(ours), intervals)
    return {**cells, OVERALL: overall(list(cells.values()))} if cells else {}


def overall(cells: Sequence[Agreement]) -> Agreement:
    """Return the mean over cells."""
    return Agreement(
        statistics.fmean(cell.spearman for cell in cells), statistics.fmean(cell.kendall for cell in cells)
    )


def compared_with(table: Table) -> tuple[str, str]:
    """Return the data set and the partition of the paper whose order is taken."""
    own = {key[:2] for key in paper_numbers()}
    config = table.protocol.config
    dataset = config.dataset if config.dataset in {name for name, _ in own} else SUBSTITUTE
    kind, dash, alpha = config.partition.partition("-")
    similar = SUBSTITUTE_KIND.get(kind, kind) + dash + alpha
    return dataset, similar if (dataset, similar) in own else config.partition


def _pairs(table: Table, setting: str) -> tuple[list[Row], list[float]]:
    """Return the rows of unchanged methods with a number of ours and the paper's, and the paper's."""
    place = (*compared_with(table), setting)
    rows, theirs = [], []
    for row in table.rows:
        cell = paper_numbers().get((*place, row.method, table.metric))
        if cell is not None and setting in row.cells and not row.changed:
            rows.append(row)
            theirs.append(cell.mean)
    return rows, theirs


def _intervals(scores: Numbers, theirs: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Return the intervals of both correlations over drawn seeds; none if a method has one seed."""
    import numpy as np

    known = np.isfinite(scores).sum(2)
    if known.min() < 2 or (draws := resample(scores)) is None:
        return {}
    stretch = draws.common_stretch * draws.widened(LEVEL)
    drawn = rank_correlations(draws.means + stretch * (draws.drawn - draws.means), theirs)
    ends = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1).T.tolist()
    return {"spearman": tuple(ends[0]), "kendall": tuple(ends[1])}


def rank_correlations(ours: Any, theirs: Sequence[float]) -> tuple[Numbers, Numbers]:
    """Return Spearman's ρ and Kendall's τ_b of each row of `ours` [n, methods] with one order.

    Both are sums over pairs of methods. Methods that tie share the mean of their places.
    """
    import numpy as np

    def pairs(values: Numbers) -> Numbers:  # 1, 0 or −1: the first is larger, equal, smaller
        left, right = values[..., :, None], values[..., None, :]
        compared: Numbers = (left > right).astype(float) - (left < right)
        return compared

    x, y = pairs(np.asarray(ours, float)), pairs(np.asarray(theirs, float))
    rank_x, rank_y = x.sum(-1), y.sum(-1)  # twice the place, less its mean
    with np.errstate(invalid="ignore"):  # all methods equal: no order
        rho = (rank_x * rank_y).sum(-1) / np.sqrt((rank_x**2).sum(-1) * (rank_y**2).sum(-1))
        tau = (x * y).sum((-2, -1)) / np.sqrt((x**2).sum((-2, -1)) * (y**2).sum((-2, -1)))
    return rho, tau
