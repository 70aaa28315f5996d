"""A table as text for people, before any format: what stands in each place, which place is marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flnl_bench.declarations import declaration
from flnl_bench.engine.ledger import PER
from flnl_bench.leaderboards.comparability import NOISY
from flnl_bench.leaderboards.cost import COLUMNS
from flnl_bench.leaderboards.metrics import METRICS
from flnl_bench.leaderboards.paper import paper_average, paper_cells, protocols, unlike_paper
from flnl_bench.leaderboards.table import Cell, Row, Table, marks
from flnl_bench.results.run_record import LAST

LEGEND = "Best in bold, second underlined."
OURS, PAPER, DIFFERENCE = "ours", "paper", "difference"


@dataclass(frozen=True)
class Entry:
    """One place of a table."""

    number: str = ""
    spread: str = ""  # the deviation, without its sign
    mark: str = ""
    fewer: int | None = None  # so many seeds, where others have more
    detail: str = ""  # what a format with room for it says when asked


@dataclass(frozen=True)
class SheetRow:
    """A label and its entries."""

    label: str
    entries: Sequence[Entry]
    kind: str = OURS

    @property
    def ours(self) -> bool:
        """Whether it is a row of the table itself, not a number of the paper below one."""
        return self.kind == OURS


@dataclass(frozen=True)
class Sheet:
    """Title, header, rows and notes."""

    title: str
    columns: Sequence[str]  # without the first, the methods
    rows: Sequence[SheetRow]
    about: Sequence[str] = ()
    alarm: str | None = None  # to be said loudly
    legend: str = ""  # what the marks are, where a format can show them
    notes: Sequence[str] = ()


def main_sheet(table: Table, *, paper: bool = False) -> Sheet:
    """The table of a metric."""
    digits = METRICS[table.metric].digits
    averaged = len(table.scored) > 1
    ranked = len(table.rows) > 1
    columns = [*table.settings, *(["Avg"] if averaged else []), *(["rank"] if ranked else [])]
    accuracies = [name for name in columns if name != "rank"]
    rows: list[SheetRow] = []
    for row, marked in zip(table.rows, marks(table), strict=True):
        cells: dict[str, Cell | None] = {**row.cells, "Avg": row.average}
        entries = [_entry(cells.get(name), marked[name], table.seeds, digits) for name in accuracies]
        ranks = [_rank(row, marked["rank"], table.seeds)] if ranked else []
        rows.append(SheetRow(row.label, [*entries, *ranks]))
        if paper:
            rows += _paper_rows(table, row, accuracies, [Entry() for _ in ranks])
    about, alarms = about_table(table), list(table.alarms)
    compared = any(row.kind == PAPER for row in rows)
    if compared:
        text, comparable = protocols(table)
        about += [f"Protocols: {text}."] if comparable else []
        alarms += [] if comparable else [text]
    elif paper:
        nothing = "No row of this table may stand beside the paper's numbers."
        about.append(nothing if unlike_paper(table) else "The paper has no numbers for this table.")
    notes = notes_of(table, paper=compared)
    notes += [f"No number of the paper beside {text}." for text in unlike_paper(table)] if paper else []
    return Sheet(table.protocol.title, columns, rows, about, "; ".join(alarms) or None, LEGEND, notes)


def _entry(cell: Cell | None, mark: str = "", seeds: int = 0, digits: int = 2) -> Entry:
    if cell is None:
        return Entry()
    return Entry(
        number=f"{cell.mean:.{digits}f}",
        spread="" if cell.std is None else f"{cell.std:.{digits}f}",
        mark=mark,
        fewer=cell.count if cell.count < seeds else None,
        detail=", ".join(f"seed {seed}: {value:.{digits}f}" for seed, value in cell.values.items()),
    )


def _rank(row: Row, mark: str, seeds: int) -> Entry:
    if row.rank is None:
        return Entry()
    return Entry(f"{row.rank:.2f}", mark=mark, fewer=row.seeds if row.seeds < seeds else None)


def _paper_rows(table: Table, row: Row, columns: Sequence[str], ranks: Sequence[Entry]) -> list[SheetRow]:
    """The paper's numbers below ours, and ours minus theirs."""
    cells = paper_cells(table, row)
    if not cells:
        return []
    theirs: dict[str, Cell | None] = {**cells, "Avg": paper_average(cells, table.scored)}
    ours: dict[str, Cell | None] = {**row.cells, "Avg": row.average}
    differences = []
    for name in columns:
        left, right = ours.get(name), theirs.get(name)
        differences.append(Entry(f"{left.mean - right.mean:+z.2f}" if left and right else ""))
    return [
        SheetRow("paper", [*(_entry(theirs.get(name)) for name in columns), *ranks], PAPER),
        SheetRow("ours − paper", [*differences, *ranks], DIFFERENCE),
    ]


def cost_sheet(table: Table, *, paper: bool = False) -> Sheet:
    """The table of costs; the paper's formulas beside them."""
    columns = [*COLUMNS.values(), *(f"sent / {per}" for per in PER), *(["paper"] if paper else [])]
    rows = []
    for row in table.rows:
        numbers = [*row.cost.numbers.values(), *row.cost.sent_per.values()]
        entries = [Entry("" if value is None else f"{value:.4g}") for value in numbers]
        formula = [Entry(declaration(row.method).paper_cost)] if paper else []
        rows.append(SheetRow(row.label, [*entries, *formula]))
    about = [
        "Measured cost, mean over all settings and seeds: megabytes (10⁶ bytes) for a client of a round, "
        f"passes for a sample of it (E = {table.protocol.training.get('epochs')} local epochs), fits of "
        "a mixture, neighbour searches and seconds for a round; sent: numbers beside the weights for each "
        "sample, for each class and once for a client.",
        f"Protocol: {table.protocol.line}.",
    ]
    notes = [f"{row.label}: {row.cost.told}" for row in table.rows if row.cost.told]
    if any(row.cost.sent is None for row in table.rows):
        notes.append("Empty: made by a version that did not count this.")
    if paper:
        notes.append(
            "Paper: bytes both ways; F forward, B backward; M a model, D samples, C classes, K clients."
        )
    return Sheet(f"{table.protocol.title} · cost", columns, rows, about, notes=notes)


# -- the words around the numbers --------------------------------------------------------------------
def about_table(table: Table) -> list[str]:
    """What the numbers are and how they were made."""
    what = METRICS[table.metric].about(table.protocol.training.get("rounds", LAST))
    return [f"{what}; {_seeds(table)}.", f"Protocol: {table.protocol.line}."]


def _seeds(table: Table) -> str:
    sets = table.seed_sets
    named = f" ({', '.join(map(str, sets[0]))})" if len(sets) == 1 else ""
    if table.seeds == 1:
        return f"one seed{named}, so no standard deviation"
    return f"mean ± sample standard deviation (ddof 1) over {table.seeds} seeds{named}"


def notes_of(table: Table, *, paper: bool = False) -> list[str]:
    """What a reader must know about single places of the table."""
    over = table.scored
    six = "the six noisy settings" if tuple(over) == NOISY else ", ".join(over)
    means = {
        "Avg": f"Avg: mean over {six}." if len(over) > 1 else "",
        "rank": f"Rank: mean rank over {six} (1 is best), among the rows that have all of them."
        if len(table.rows) > 1
        else "",
    }
    notes = [text for text in means.values() if text]
    left_out = [name for name in table.settings if name not in (*over, "clean")]
    if notes and left_out:
        told = ", ".join(f"{name} (in {_having(table, name)} rows)" for name in left_out)
        there = " and ".join(name for name, text in means.items() if text)
        notes.append(f"Not in {'the rank' if there == 'rank' else there}: {told}.")
    counts = {cell.count for row in table.rows for cell in row.cells.values()}
    if len(counts) > 1:
        notes.append(
            f"†n: over n seeds only, where others have {table.seeds}; in a column, only numbers over the "
            "most seeds can be best or second."
        )
    if len(table.seed_sets) > 1:
        notes.append(f"Cells have different seeds: {seed_sets(table)}.")
    if table.imported:
        files = ", ".join(f"{file} ({count})" for file, count in sorted(table.imported.items()))
        notes.append(f"Imported runs take part: {files}.")
    if paper:
        notes.append("The paper's ± is as printed; its Avg is computed from its row.")
    return notes


def _having(table: Table, setting: str) -> str:
    return f"{sum(setting in row.cells for row in table.rows)} of {len(table.rows)}"


def seed_sets(table: Table) -> str:
    """The sets of seeds in a table."""
    return " | ".join(", ".join(map(str, seeds)) for seeds in table.seed_sets)
