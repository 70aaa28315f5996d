"""The numbers of the FedGR paper (ICML 2026), as printed; averages are computed, never copied."""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Sequence
from importlib.resources import files

from flnl_bench.leaderboard.table import Cell, Row, Table

SOURCE = "FedGR paper (ICML 2026)"
SEEDS = 3


@functools.lru_cache(maxsize=1)
def numbers() -> dict[tuple[str, ...], Cell]:
    """Every reported number, by data set, partition, setting, method and metric."""
    text = (files(__package__) / "paper" / "results.csv").read_text(encoding="utf-8")
    cells = {}
    for line in csv.DictReader(text.splitlines()):
        if line["mean"] and line["setting"] != "avg":  # several printed averages do not match their rows
            key = tuple(line[name] for name in ("dataset", "partition", "setting", "method", "metric"))
            cells[key] = Cell(float(line["mean"]), float(line["std"]) if line["std"] else None, {}, SEEDS)
    return cells


def paper_cells(table: Table, row: Row) -> dict[str, Cell]:
    """The paper's numbers for a row of ours, by setting."""
    about, found = table.protocol, {}
    for setting in table.settings:
        cell = numbers().get((about.dataset, about.partition, setting, row.method, table.metric))
        if cell is not None:
            found[setting] = cell
    return found


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
