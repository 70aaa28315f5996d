"""The numbers of the FedGR paper (ICML 2026), as printed; averages are computed, never copied."""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files

from flnl_bench.config import written
from flnl_bench.leaderboards.rows import Cell, Row
from flnl_bench.leaderboards.table import Table

SOURCE = "FedGR paper (ICML 2026)"
SEEDS = 3
ABLATED = ("cifar10", "last10")  # data set and metric of all ablation tables
VARIANTS = {
    "w/o. FS": "fedgr/no-sieve",
    "w/o. LR": "fedgr/no-refine",
    "w/o. R_k": "fedgr/no-repreg",
    "w/o. B_k": "fedgr/no-ema",
    "w/o. weak aug": "fedgr/no-weak",
    "w/o. strong aug": "fedgr/no-strong",
    "Online EMA distill": "fedgr/online-ema",
    "Randomly sample clients w/. replacement in warmup": "fedgr/replacement",
}


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
        method, values = VARIANTS.get(line["variant"], "fedgr"), {}
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
