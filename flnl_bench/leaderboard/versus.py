"""The table of comparisons with one method, for people."""

from __future__ import annotations

from flnl_bench.leaderboard.against import ENOUGH, TIE, Comparison, compare, find_row
from flnl_bench.leaderboard.sheet import Entry, Line, Sheet
from flnl_bench.leaderboard.table import Table

COLUMNS = ("pairs", "diff.", "95 % interval", "W/T/L", "p")


def comparisons(table: Table, name: str) -> dict[str, Comparison]:
    """Every other row of a table against the row called `name`, by label."""
    base = find_row(table, name)
    if base is None:
        return {}
    return {row.label: compare(row, base, table.scored) for row in table.rows if row is not base}


def versus_sheet(table: Table, name: str) -> Sheet:
    """Differences to one method, with their interval and test."""
    found = comparisons(table, name)
    title = f"{table.protocol.title} · against {name}"
    if not found:
        why = "is alone in" if find_row(table, name) else "is not in"
        return Sheet(title, [], [], about=[f"{name} {why} this table."])
    lines = [Line(label, _entries(one)) for label, one in found.items()]
    notes = [
        f"W/T/L: wins, ties (differences below {TIE} points) and losses.",
        "p: two-sided Wilcoxon signed-rank test over the pairs that do not tie, not corrected for the number "
        "of methods; pairs of one setting are not independent of each other.",
    ]
    if any(one.p is None for one in found.values()):
        notes.append(f"No test (too few) below {ENOUGH} pairs that do not tie.")
    about = [
        f"Paired difference to {name} in points, over seeds × settings ({', '.join(table.scored)}); "
        f"above 0 is better than {name}; interval by Student's t."
    ]
    return Sheet(title, COLUMNS, lines, about, notes=notes)


def _entries(one: Comparison) -> list[Entry]:
    interval = "" if one.low is None or one.high is None else f"{one.low:+z.2f} to {one.high:+z.2f}"
    return [
        Entry(str(one.pairs)),
        Entry("" if one.difference is None else f"{one.difference:+z.2f}"),
        Entry(interval),
        Entry(f"{one.wins}/{one.ties}/{one.losses}"),
        Entry("too few" if one.p is None else f"{one.p:.3g}"),
    ]
