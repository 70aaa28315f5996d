"""Does our order of methods agree with the paper's? Rank correlations, cell by cell and over all."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flnl_bench.leaderboards.paper import numbers
from flnl_bench.leaderboards.render import Entry, Sheet, SheetRow
from flnl_bench.leaderboards.table import Row, Table, rank_column

OTHERWISE = "cifar10"  # whose order is taken for data sets that the paper does not have
ENOUGH = 3  # methods: the order of two agrees by chance every second time
OVERALL = "overall"


@dataclass(frozen=True)
class Agreement:
    """How far two orders of the same methods agree: 1 the same, −1 reversed."""

    spearman: float
    kendall: float
    methods: int | None = None  # None: a mean over cells


def agreements(table: Table) -> dict[str, Agreement]:
    """By setting, over the methods that both have as their presets say; and the mean of the cells."""
    found = {}
    for setting in table.settings:
        ours, theirs = _pairs(table, setting)
        if len(ours) >= ENOUGH and len(set(ours)) > 1 and len(set(theirs)) > 1:
            found[setting] = Agreement(spearman(ours, theirs), kendall(ours, theirs), len(ours))
    return {**found, OVERALL: overall(list(found.values()))} if found else {}


def overall(cells: Sequence[Agreement]) -> Agreement:
    """The mean over cells."""
    return Agreement(
        statistics.fmean(one.spearman for one in cells), statistics.fmean(one.kendall for one in cells)
    )


def compared_with(table: Table) -> str:
    """The data set of the paper whose order is taken."""
    own = {dataset for dataset, *_ in numbers()}
    return table.protocol.dataset if table.protocol.dataset in own else OTHERWISE


def _pairs(table: Table, setting: str) -> tuple[list[float], list[float]]:
    """Our numbers and the paper's for a setting, of the rows that have both."""
    place = (compared_with(table), table.protocol.partition, setting)
    ours, theirs = [], []
    for row in table.rows:
        cell = numbers().get((*place, row.method, table.metric))
        if cell is not None and setting in row.cells and _plain(row):
            ours.append(row.cells[setting].mean)
            theirs.append(cell.mean)
    return ours, theirs


def _plain(row: Row) -> bool:
    """Whether nothing is changed about the method; where runs do not say, its only row is taken for it."""
    if row.changed is None:
        return row.label.removesuffix(f" v{row.version}") == row.method
    return not row.changed


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """ρ: Pearson's correlation of the ranks; ties share the mean of their places."""
    return statistics.correlation(rank_column(one), rank_column(other))


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """τ_b: pairs in the same order minus pairs in the other, ties allowed for."""
    one, other = rank_column(one), rank_column(other)
    pairs = [(i, j) for i in range(len(one)) for j in range(i)]
    left, right = ([(x[i] > x[j]) - (x[i] < x[j]) for i, j in pairs] for x in (one, other))
    alike = sum(a * b for a, b in zip(left, right, strict=True))
    return alike / (sum(map(abs, left)) * sum(map(abs, right))) ** 0.5


def agreement_sheet(tables: Sequence[Table]) -> Sheet | None:
    """Both correlations of every table that has some, and the mean of all cells."""
    found = {table.protocol.title: agreements(table) for table in tables}
    found = {title: cells for title, cells in found.items() if cells}
    if not found:
        return None
    columns = [*dict.fromkeys(name for cells in found.values() for name in cells if name != OVERALL), OVERALL]
    if len(found) > 1:
        every = [one for cells in found.values() for name, one in cells.items() if name != OVERALL]
        found["all tables"] = {OVERALL: overall(every)}
    rows = [
        SheetRow(f"{title}: {name}", [_entry(cells.get(column), name) for column in columns])
        for title, cells in found.items()
        for name in ("spearman", "kendall")
    ]
    others = sorted({t.protocol.dataset for t in tables if compared_with(t) != t.protocol.dataset})
    about = ["Rank correlation of our means with the paper's: 1 the same order, −1 the reversed one."]
    if others:
        about.append(f"The paper has no numbers for {', '.join(others)}: its order for {OTHERWISE} is taken.")
    notes = [
        f"Over the methods that both have with the values of their presets, at least {ENOUGH}; overall: mean "
        "over the cells. Spearman's ρ, Kendall's τ_b."
    ]
    return Sheet("Order of the methods, here and in the paper", columns, rows, about, notes=notes)


def _entry(one: Agreement | None, name: str) -> Entry:
    if one is None:
        return Entry()
    detail = "" if one.methods is None else f"{one.methods} methods"
    return Entry(f"{getattr(one, name):.2f}", detail=detail)
