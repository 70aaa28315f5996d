"""Agreement of our order of methods with the paper's: rank correlations per cell and over all cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flnl_bench.leaderboards.paper import paper_numbers
from flnl_bench.leaderboards.render import TextCell, TextRow, TextTable
from flnl_bench.leaderboards.table import Table, rank_column

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


def agreement_table(tables: Sequence[Table]) -> TextTable | None:
    """Make a table of both correlations of every table that has some, and the mean of all cells."""
    by_title = {table.protocol.title: cells for table in tables if (cells := agreements(table))}
    if not by_title:
        return None
    settings = dict.fromkeys(name for cells in by_title.values() for name in cells if name != OVERALL)
    columns = [*settings, OVERALL]
    if len(by_title) > 1:
        every_cell = [cell for cells in by_title.values() for name, cell in cells.items() if name != OVERALL]
        by_title["all tables"] = {OVERALL: overall(every_cell)}
    rows = [
        TextRow(f"{title}: {name}", [_text_cell(cells.get(column), name) for column in columns])
        for title, cells in by_title.items()
        for name in ("spearman", "kendall")
    ]
    datasets = {table.protocol.config.dataset: compared_dataset(table) for table in tables}
    substituted = sorted(name for name, compared in datasets.items() if compared != name)
    about = ["Rank correlation of our means with the paper's: 1 the same order, −1 the reversed one."]
    if substituted:
        about.append(
            f"The paper has no numbers for {', '.join(substituted)}: its order for {SUBSTITUTE} is used."
        )
    notes = [
        f"Over the methods that both have with the values of their presets, at least {LEAST_METHODS}; "
        "overall: mean over the cells. Spearman's ρ, Kendall's τ_b."
    ]
    return TextTable("Order of the methods, here and in the paper", columns, rows, about, notes=notes)


def _text_cell(agreement: Agreement | None, name: str) -> TextCell:
    if agreement is None:
        return TextCell()
    detail = "" if agreement.methods is None else f"{agreement.methods} methods"
    return TextCell(f"{getattr(agreement, name):.2f}", detail=detail)
