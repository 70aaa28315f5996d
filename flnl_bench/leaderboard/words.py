"""What is said above and below a table, so that it can be read alone."""

from __future__ import annotations

from flnl_bench.leaderboard.order import NOISY
from flnl_bench.leaderboard.table import Table
from flnl_bench.recorder.summary import LAST


def about_table(table: Table) -> list[str]:
    """What the numbers are and how they were made."""
    rounds = table.protocol.training.get("rounds", LAST)
    what = (
        f"mean of the last {min(LAST, rounds)} rounds (last-10)"
        if table.metric == "last10"
        else "the best round (best)"
    )
    return [f"Test accuracy in %, {what}; {_seeds(table)}.", f"Protocol: {table.protocol.line}."]


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
    notes = []
    if len(over) > 1:
        notes.append(f"Avg: mean over {six}.")
    notes.append(f"Rank: mean rank over {six} (1 is best), among the rows that have all of them.")
    if left_out := [name for name in table.settings if name not in (*over, "clean")]:
        told = ", ".join(f"{name} (in {_having(table, name)} rows)" for name in left_out)
        notes.append(f"Not in {'Avg and rank' if len(over) > 1 else 'the rank'}: {told}.")
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
