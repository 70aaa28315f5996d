"""The numbers of the FedGR paper (ICML 2026), as printed; averages are computed, never copied."""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from flnl_bench.config import written
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.table import Cell, Row, Table

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
def numbers() -> dict[tuple[str, ...], Cell]:
    """Every reported number, by data set, partition, setting, method and metric."""
    text = (files(__package__) / "paper_numbers" / "results.csv").read_text(encoding="utf-8")
    cells = {}
    for line in csv.DictReader(text.splitlines()):
        if line["mean"] and line["setting"] != "avg":  # several printed averages do not match their rows
            key = tuple(line[name] for name in ("dataset", "partition", "setting", "method", "metric"))
            cells[key] = Cell(float(line["mean"]), float(line["std"]) if line["std"] else None, {}, SEEDS)
    return cells


@functools.lru_cache(maxsize=1)
def _ablations() -> list[tuple[str, dict[str, float], str, str, Cell]]:
    """The ablation tables: variant, values of a sweep, partition, setting, number.

    FedGR as it is stands in all of them, once with other numbers: those of the main table count.
    """
    text = (files(__package__) / "paper_numbers" / "ablations.csv").read_text(encoding="utf-8")
    found = []
    for line in csv.DictReader(text.splitlines()):
        method, values = VARIANTS.get(line["variant"], "fedgr"), {}
        if "=" in line["variant"]:
            pairs = (pair.split("=") for pair in line["variant"].lower().split())
            values = {name: float(value) for name, value in pairs}
        if method != "fedgr" or values:
            cell = Cell(float(line["mean"]), float(line["std"]), {}, SEEDS)
            found.append((method, values, line["partition"], line["setting"], cell))
    return found


def paper_cells(table: Table, row: Row) -> dict[str, Cell]:
    """The paper's numbers for a row of ours, by setting; none if its hyper-parameters are others."""
    if not _has_numbers(table, row):
        return {}
    changed = changed_of(table, row)
    if changed is None:
        return {}
    about, found = table.protocol, {}
    for setting in table.settings:
        cell = numbers().get((about.dataset, about.partition, setting, row.method, table.metric))
        if cell is not None and not changed:
            found[setting] = cell
    return found or _ablation_cells(table, row, changed)


def _ablation_cells(table: Table, row: Row, changed: Mapping[str, Any]) -> dict[str, Cell]:
    """The numbers of the ablation tables, for a variant as it is or for values that the paper swept."""
    if (table.protocol.dataset, table.metric) != ABLATED:
        return {}
    return {
        setting: cell
        for method, values, partition, setting, cell in _ablations()
        if (method, partition) == (row.method, table.protocol.partition)
        and setting in table.settings
        and (not changed if not values else changed and changed.keys() <= values.keys())
        and all(row.hyperparameters.get(name) == value for name, value in values.items())
    }


def unlike_paper(table: Table) -> list[str]:
    """Rows of the paper's methods that get no number of it, each with the reason."""
    return [
        f"{row.label}: {_why(changed_of(table, row))}"
        for row in table.rows
        if _has_numbers(table, row) and not paper_cells(table, row)
    ]


def _why(changed: Mapping[str, Any] | None) -> str:
    if changed is None:
        return "the hyper-parameters of its preset are not known here"
    return f"its hyper-parameters are not those of its preset ({written(changed)})"


def changed_of(table: Table, row: Row) -> Mapping[str, Any] | None:
    """The hyper-parameters of a row that its preset does not say; of older runs they are worked out."""
    if row.changed is not None:
        return row.changed
    from flnl_bench.running.resolve import changed_values

    about = table.protocol
    try:
        return changed_values(row.method, about.dataset, about.preset, row.hyperparameters)
    except BadInput:  # a preset or variant that this version does not know
        return None


def _has_numbers(table: Table, row: Row) -> bool:
    """Whether the paper says anything about a row's method in this table."""
    about = table.protocol
    settings = [
        setting
        for setting in table.settings
        if (about.dataset, about.partition, setting, row.method, table.metric) in numbers()
    ]
    ablated = (about.dataset, table.metric) == ABLATED and any(
        (method, partition) == (row.method, about.partition) and setting in table.settings
        for method, _, partition, setting, _ in _ablations()
    )
    return bool(settings) or ablated


def paper_average(cells: dict[str, Cell], over: Sequence[str]) -> Cell | None:
    """The mean of the paper's row over the settings of our average."""
    if not all(name in cells for name in over):
        return None
    return Cell(statistics.fmean(cells[name].mean for name in over), None, {}, SEEDS)


def protocols(table: Table) -> tuple[str, bool]:
    """Which protocol each side has, and whether they may be compared."""
    about = table.protocol
    ours = f"{about.preset} protocol{about.name.removeprefix(about.preset)}"
    if about.is_paper:
        return f"ours: {ours}; {SOURCE}: paper protocol", True
    return f"{ours} vs paper protocol: not comparable", False
