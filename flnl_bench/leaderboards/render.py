"""A table as text for people, before any format: the content of each cell, its mark, and the notes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flnl_bench.assumptions import ASSUMPTIONS
from flnl_bench.engine.ledger import PER, sentence
from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.comparability import NOISY
from flnl_bench.leaderboards.comparison import Comparison, comparisons, find_row, setting_tests, tie
from flnl_bench.leaderboards.metrics import COST_COLUMNS, Metric, find_metric, sent_numbers
from flnl_bench.leaderboards.paper import (
    LEAST_METHODS,
    OVERALL,
    Agreement,
    agreements,
    both_protocols,
    compared_with,
    overall,
    paper_average,
    paper_cells,
    without_paper_numbers,
)
from flnl_bench.leaderboards.statistics import (
    DRAWS,
    FEWEST_SETTINGS,
    LEAST_PAIRS,
    LEVEL,
    PLACE_LEVEL,
    SIGNIFICANCE,
    least_pairs,
)
from flnl_bench.leaderboards.table import Cell, Row, Standing, Table, mark_table
from flnl_bench.methods import declaration
from flnl_bench.results.verified import count_statuses

DIVERGED_NOTE = (
    "✗n: n runs diverged (a loss is not finite): such a number ranks last and is never best or second."
)
ELSEWHERE = "*"
ELSEWHERE_NOTE = f"{ELSEWHERE}: measured on other machines; compare passes instead of seconds."
LEGEND = "Best in bold, second underlined."
OURS, PAPER, DIFFERENCE, DETECTABLE = "ours", "paper", "difference", "detectable"  # kinds of rows
AVERAGE, RANK, PLACE, FIRST = "Avg", "rank", "place", "P(best)"  # columns
OWN, TIED = "▸", "="  # before a method of the user; after a rank that rows share


@dataclass(frozen=True)
class TextCell:
    """One cell as text."""

    number: str = ""
    spread: str = ""  # the deviation, without its sign
    mark: str = ""  # best or second
    flags: Sequence[str] = ()  # as †2: over two seeds, if others have more; ✗1: one run diverged
    detail: str = ""  # shown on demand by formats that can


@dataclass(frozen=True)
class TextRow:
    """A label and its cells."""

    label: str
    cells: Sequence[TextCell]
    kind: str = OURS
    method: str = ""
    title: str = ""  # the label with the method's name as in its paper
    own: bool = False  # a method of the user, not of this package

    @property
    def shown(self) -> str:
        """The label, marked if it is a method of the user."""
        return f"{OWN} {self.label}" if self.own else self.label

    @property
    def ours(self) -> bool:
        """Whether it is a row of the table itself, not the paper's numbers below one."""
        return self.kind == OURS


@dataclass(frozen=True)
class TextTable:
    """Title, header, rows and notes; every format renders these."""

    title: str
    columns: Sequence[str]  # without the first, the methods
    rows: Sequence[TextRow]
    about: Sequence[str] = ()
    alarm: str | None = None  # a warning in one line, which is a comment in Markdown and LaTeX
    legend: str = ""  # the meaning of the marks, for formats that can show them
    notes: Sequence[str] = ()
    caption: str = ""  # instead of title and `about`, in LaTeX
    label: str = ""  # of LaTeX


@dataclass(frozen=True)
class Layout:
    """The part of a table that is written, and its form; no number depends on it."""

    columns: Sequence[str] = ()  # in this order; all if empty
    rows: Sequence[str] = ()  # labels or methods, in this order; all if empty
    caption: str = ""
    label: str = ""
    spread: bool = True  # ± after a mean
    notes: bool = True  # below the table, with the differences that can be detected

    def check(self, tables: Sequence[Table]) -> None:
        """Refuse names that no table has, and a caption of several tables."""
        known = [*{name: 0 for table in tables for name in table.settings}, AVERAGE, RANK, PLACE, FIRST]
        lower = [name.lower() for name in known]
        for name in self.columns:
            if name.lower() not in lower:
                raise unknown("column", name, known)
        labels = {name for table in tables for row in table.rows for name in (row.label, row.method)}
        for name in self.rows:
            if name not in labels:
                raise unknown("row", name, labels)
        if (self.caption or self.label) and len(tables) > 1:
            raise BadInput(
                f"a caption and a label are of one table, but there are {len(tables)}; choose one by data "
                "set, partition or preset"
            )

    def apply(self, text: TextTable) -> TextTable:
        """Return the chosen rows and columns of the table of a metric."""
        names = [name.lower() for name in self.columns]
        places = list(range(len(text.columns)))
        if names:
            shown = [name.lower() for name in text.columns]
            places = [shown.index(name) for name in names if name in shown]
        columns = [text.columns[place] for place in places]
        shown_notes = tuple(text.notes) if self.notes else ()
        if names:  # notes that explain hidden columns are left out; the one on places also explains P(best)
            hidden = {name.capitalize() for name in text.columns if name not in columns}
            hidden -= {PLACE.capitalize()} if FIRST in columns else set()
            shown_notes = tuple(note for note in shown_notes if note.partition(":")[0] not in hidden)
        rows = [
            dataclasses.replace(row, cells=[self._cell(row.cells[place]) for place in places])
            for row in self._chosen(text.rows)
            if self.notes or row.kind != DETECTABLE  # which a note explains
        ]
        return dataclasses.replace(
            text,
            columns=columns,
            rows=rows,
            legend=text.legend if self.notes else "",
            notes=shown_notes,
            caption=self.caption,
            label=self.label,
        )

    def _cell(self, cell: TextCell) -> TextCell:
        return cell if self.spread else dataclasses.replace(cell, spread="")

    def _chosen(self, rows: Sequence[TextRow]) -> list[TextRow]:
        """Return the chosen rows, each with the rows of the paper below it."""
        if not self.rows:
            return list(rows)
        blocks: list[list[TextRow]] = []
        for row in rows:
            if row.ours:
                blocks.append([])
            if row.kind != DETECTABLE:
                blocks[-1].append(row)
        chosen: dict[str, list[TextRow]] = {}
        for name in self.rows:
            chosen |= {b[0].label: b for b in blocks if name in (b[0].label, b[0].method)}
        return [row for block in chosen.values() for row in block]


def main_table(
    table: Table, *, paper: bool = False, against: str | None = None, layout: Layout | None = None
) -> TextTable:
    """Make the table of a metric; with a method that the others are tested against, setting by setting."""
    digits = find_metric(table.metric).digits
    averages = [AVERAGE] if len(table.scored) > 1 else []
    marks_own = 0 < sum(row.own for row in table.rows) < len(table.rows)
    ranked = len(table.rows) > 1
    numbers = [*table.settings, *averages]
    standings = table.standings
    tests = setting_tests(table, against) if against is not None else {}
    rows: list[TextRow] = []
    for row, marked in zip(table.rows, mark_table(table), strict=True):
        own: dict[str, Cell | None] = {**row.cells, AVERAGE: row.average}
        signs = tests.get(row.label, {})
        texts = [
            _text_cell(own.get(name), marked[name], table.seeds, digits, signs.get(name)) for name in numbers
        ]
        ranks = [_rank_cell(table, row, marked[RANK])] if ranked else []
        ranks += _standing_cells(standings.get(row.label)) if standings else []
        own_mark = marks_own and row.own
        rows.append(TextRow(row.label, [*texts, *ranks], OURS, row.method, row.title, own_mark))
        if paper:
            rows += _paper_rows(table, row, numbers, [TextCell() for _ in ranks])
    if detectable := table.detectable:
        cells = [TextCell(f"{detectable[name]:.{digits}f}" if name in detectable else "") for name in numbers]
        rows.append(TextRow("detectable", [*cells, *(TextCell() for _ in ranks)], DETECTABLE))
    about, alarms = about_table(table), list(table.alarms)
    compared = any(row.kind == PAPER for row in rows)
    without_numbers = without_paper_numbers(table) if paper else []
    if compared:
        protocols, comparable = both_protocols(table)
        about += [f"Protocols: {protocols}."] if comparable else []
        alarms += [] if comparable else [protocols]
    elif paper:
        nothing = "No row of this table can be compared with the paper's numbers."
        about.append(nothing if without_numbers else "The paper has no numbers for this table.")
    notes = table_notes(table, paper=compared)
    notes += [f"No number of the paper for {text}." for text in without_numbers]
    notes += _test_notes(table, against, tests) if against is not None else []
    notes += [f"{OWN}: not a method of this package."] if marks_own else []
    if "seconds" in table.metric and (others := [row.label for row in table.rows if row.elsewhere]):
        notes.append(f"Measured on other machines: {', '.join(others)}; compare passes instead of seconds.")
    columns = [*numbers, *([RANK] if ranked else []), *([PLACE, FIRST] if standings else [])]
    text = TextTable(table.protocol.title, columns, rows, about, "; ".join(alarms) or None, LEGEND, notes)
    return (layout or Layout()).apply(text)


def _text_cell(
    cell: Cell | None, mark: str = "", seeds: int = 0, digits: int = 2, sign: str | None = None
) -> TextCell:
    if cell is None:
        return TextCell()
    return TextCell(
        number=f"{cell.mean:.{digits}f}",
        spread="" if cell.std is None else f"{cell.std:.{digits}f}",
        mark=mark,
        flags=[*_flags(cell.count, seeds, cell.diverged), *([sign] if sign else [])],
        detail=", ".join(f"seed {seed}: {value:.{digits}f}" for seed, value in cell.values.items()),
    )


def _rank_cell(table: Table, row: Row, mark: str) -> TextCell:
    if row.rank is None:
        return TextCell()
    tied = [TIED] if table.shown_ranks[f"{row.rank:.2f}"] > 1 else []
    return TextCell(
        f"{row.rank:.2f}", mark=mark, flags=[*tied, *_flags(row.seeds, table.seeds, row.diverged)]
    )


def _standing_cells(standing: Standing | None) -> list[TextCell]:
    """Write the interval of the place with the letters of ties, and the probability of being first."""
    if standing is None:
        return [TextCell(), TextCell()]
    low, high = standing.low, standing.high
    place = str(low) if low == high else f"{low}–{high}"
    return [TextCell(f"{place} {standing.letters}".rstrip()), TextCell(f"{standing.best:.2f}")]


def _flags(count: int, most: int, diverged: Sequence[int]) -> list[str]:
    fewer = [f"†{count}"] if 0 < count < most else []
    return fewer + ([f"✗{len(diverged)}"] if diverged else [])


def _paper_rows(table: Table, row: Row, columns: Sequence[str], ranks: Sequence[TextCell]) -> list[TextRow]:
    """Make a row of the paper's numbers, and a row of ours minus theirs."""
    cells = paper_cells(table, row)
    if not cells:
        return []
    theirs: Mapping[str, Cell | None] = {**cells, "Avg": paper_average(cells, table.scored)}
    ours: Mapping[str, Cell | None] = {**row.cells, "Avg": row.average}
    differences = []
    for name in columns:
        left, right = ours.get(name), theirs.get(name)
        differences.append(TextCell(f"{left.mean - right.mean:+z.2f}" if left and right else ""))
    return [
        TextRow("paper", [*(_text_cell(theirs.get(name)) for name in columns), *ranks], PAPER),
        TextRow("ours − paper", [*differences, *ranks], DIFFERENCE),
    ]


def cost_table(table: Table, *, paper: bool = False) -> TextTable:
    """Make the table of costs, if asked for with the paper's formulas."""
    columns = [*COST_COLUMNS.values(), *(f"sent / {per}" for per in PER), *(["paper"] if paper else [])]
    rows = []
    for row in table.rows:
        numbers = row.cost | sent_numbers(row.sent)
        cells = [
            TextCell(
                "" if value is None else f"{value:.4g}",
                flags=[ELSEWHERE] if name == "seconds" and row.elsewhere else [],
            )
            for name, value in numbers.items()
        ]
        formula = [TextCell(declaration(row.method).paper_cost)] if paper else []
        rows.append(TextRow(row.label, [*cells, *formula]))
    about = [
        "Measured cost, mean over all settings and seeds: megabytes (10⁶ bytes) per client and round, "
        f"passes per sample and round (E = {table.protocol.config.training.epochs} local epochs), "
        "fits of a mixture, neighbour searches and seconds per round; sent: numbers next to the weights for "
        "each sample, for each class and once per client.",
        f"Protocol: {table.protocol.line}.",
    ]
    senders: dict[str, list[str]] = {}  # sentence → rows
    for row in table.rows:
        senders.setdefault(sentence(row.sent), []).append(row.label)
    notes = [f"{', '.join(labels)}: {text}" for text, labels in senders.items()]
    if any(row.elsewhere for row in table.rows):
        notes.insert(0, ELSEWHERE_NOTE)
    notes.append(verification_note(table))
    if paper:
        notes.append(
            "Paper: bytes both ways; F forward, B backward; M a model, D samples, C classes, K clients."
        )
    alarm = "; ".join(table.alarms) or None
    return TextTable(f"{table.protocol.title} · cost", columns, rows, about, alarm, notes=notes)


COMPARISON_COLUMNS = ("pairs", "diff.", f"{100 * LEVEL:.0f} % interval", "W/T/L", "P(better)", "p (Holm)")


def comparison_table(table: Table, name: str) -> TextTable:
    """Make a table of the differences to one method, with their interval and test."""
    compared = comparisons(table, name)
    title = f"{table.protocol.title} · against {name}"
    if not compared:
        why = "is the only row of" if find_row(table, name) else "is not in"
        return TextTable(title, [], [], about=[f"{name} {why} this table."])
    metric = find_metric(table.metric)
    titles = {row.label: row.title for row in table.rows}
    rows = [
        TextRow(label, _comparison_cells(result, metric.digits), title=titles[label])
        for label, result in compared.items()
    ]
    about = [
        f"Paired difference to {name} in points, over seeds × settings ({', '.join(table.scored)}); "
        f"{'above' if metric.higher else 'below'} 0 is better than {name}; interval by a paired bootstrap."
    ]
    return TextTable(title, COMPARISON_COLUMNS, rows, about, notes=_comparison_notes(table, compared, metric))


def _comparison_notes(table: Table, compared: Mapping[str, Comparison], metric: Metric) -> list[str]:
    several = len(table.scored) > 1
    notes = [
        f"W/T/L: wins, ties (differences below {tie(metric):g} points) and losses; P(better): share of won "
        "pairs, a tie counts half, mean over settings.",
        "p: two-sided Wilcoxon signed-rank test over the "
        f"{'means of settings' if several else 'seeds'} without ties, Holm's correction over the rows.",
    ]
    tested = sum(result.p is not None for result in compared.values())
    units = len(table.scored) if several else max(result.pairs for result in compared.values())
    if tested and (smallest := tested * 2.0 ** (1 - units)) > SIGNIFICANCE:
        unit = "settings" if several else "seeds"
        notes.append(f"With {units} {unit} and {tested} rows no p can be below {min(1.0, smallest):.2g}.")
    if any(result.diverged_pairs for result in compared.values()):
        notes.append("✗n: in n pairs a run diverged; it loses, and there is no interval.")
    if any(result.p is None for result in compared.values()):
        unit = "settings" if several else "seeds"
        notes.append(
            f"No p-value: with {units} {unit} it cannot be below {SIGNIFICANCE}; at least {LEAST_PAIRS} "
            "without ties are needed. Read the interval instead; `flnl-bench suite plan` says how many are "
            "needed for a difference."
        )
    return notes


def _comparison_cells(result: Comparison, digits: int) -> list[TextCell]:
    def signed(value: float | None) -> str:
        return "" if value is None else f"{value:+z.{digits}f}"

    return [
        TextCell(str(result.pairs), flags=[f"✗{result.diverged_pairs}"] if result.diverged_pairs else []),
        TextCell(signed(result.difference)),
        TextCell("" if result.low is None else f"{signed(result.low)} to {signed(result.high)}"),
        TextCell(f"{result.wins}/{result.ties}/{result.losses}"),
        TextCell("" if result.better is None else f"{result.better:.2f}"),
        TextCell("none" if result.p is None else f"{result.p:.3g}"),
    ]


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
        TextRow(f"{title}: {name}", [_agreement_cell(cells.get(column), name) for column in columns])
        for title, cells in by_title.items()
        for name in ("spearman", "kendall")
    ]
    replaced: dict[str, list[str]] = defaultdict(list)  # by the paper's name: our names
    for table in tables:
        config = table.protocol.config
        for ours, theirs in zip((config.dataset, config.partition), compared_with(table), strict=True):
            if table.protocol.title in by_title and ours != theirs and ours not in replaced[theirs]:
                replaced[theirs].append(ours)
    about = ["Rank correlation of our means with the paper's: 1 the same order, −1 the reversed one."]
    about += [
        f"The paper has no numbers for {', '.join(sorted(names))}: its order for {name} is used."
        for name, names in replaced.items()
    ]
    notes = [
        f"Over the methods that both have with the values of their presets, at least {LEAST_METHODS}; "
        "overall: mean over the cells. Spearman's ρ, Kendall's τ_b; in brackets the 95 % interval over our "
        "seeds, where every method has several."
    ]
    return TextTable("Order of the methods, here and in the paper", columns, rows, about, notes=notes)


def _agreement_cell(agreement: Agreement | None, name: str) -> TextCell:
    if agreement is None:
        return TextCell()
    detail = "" if agreement.methods is None else f"{agreement.methods} methods"
    low, high = agreement.intervals.get(name, (None, None))
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return TextCell(f"{getattr(agreement, name):.2f}{interval}", detail=detail)


# -- the words around the numbers --------------------------------------------------------------------
def about_table(table: Table) -> list[str]:
    """Describe the metric, the seeds and the protocol of a table."""
    metric = find_metric(table.metric).about(table.protocol.config.training.rounds)
    return [f"{metric}; {_seeds(table)}.", f"Protocol: {table.protocol.line}."]


def _seeds(table: Table) -> str:
    sets = table.seed_sets
    named = f" ({', '.join(map(str, sets[0]))})" if len(sets) == 1 else ""
    if table.seeds == 1:
        return f"one seed{named}, so no standard deviation"
    return f"mean ± sample standard deviation (ddof 1) over {table.seeds} seeds{named}"


def table_notes(table: Table, *, paper: bool = False) -> list[str]:
    """Explain averages, ranks, cells with fewer seeds, imported runs, code, assumptions and verification."""
    over = table.scored
    names = "the six noisy settings" if tuple(over) == NOISY else ", ".join(over)
    means = {}
    if len(over) > 1:
        means["Avg"] = f"Avg: mean over {names}."
    if len(table.rows) > 1:
        means["rank"] = (
            f"Rank: mean rank over {names} (1 is best), among the rows that have all of them; rows that tie "
            "in a setting share the mean of their places."
        )
        ranks = [f"{row.rank:.2f}" for row in table.rows if row.rank is not None]
        if len(set(ranks)) < len(ranks):
            means["rank"] += f" {TIED}: the same rank as another row."
    notes = list(means.values())
    left_out = [name for name in table.settings if name not in (*over, "clean")]
    if notes and left_out:
        rows = ", ".join(f"{name} (in {_rows_with(table, name)} rows)" for name in left_out)
        numbers = "the rank" if list(means) == ["rank"] else " and ".join(means)
        notes.append(f"Not in {numbers}: {rows}.")
    notes += resolution_notes(table)
    counts = {cell.count for row in table.rows for cell in row.cells.values()}
    if len(counts) > 1:
        notes.append(
            f"†n: over n seeds instead of {table.seeds}; in a column, only numbers over the "
            "most seeds can be best or second."
        )
    if any(cell.diverged for row in table.rows for cell in row.cells.values()):
        notes.append(DIVERGED_NOTE)
    if len(table.seed_sets) > 1:
        notes.append(f"Cells have different seeds: {seed_sets(table)}.")
    notes += [
        f"{row.label}: its runs differ in the code of the {' and the '.join(row.other_code)}."
        for row in table.rows
        if row.other_code
    ]
    if imported := table.imported:
        files = ", ".join(f"{file} ({count})" for file, count in sorted(imported.items()))
        notes.append(f"Includes {imported.total()} imported runs: {files}.")
    notes += [assumption_note(table), verification_note(table)]
    if paper:
        notes.append("The paper's ± is as printed; its Avg is computed from its row.")
    return [note for note in notes if note]


def assumption_note(table: Table) -> str:
    """Name the rows that need more than images and labels, by assumption."""
    rows = {key: [row.label for row in table.rows if key in row.assumes] for key in ASSUMPTIONS}
    parts = [f"{key} ({', '.join(labels)})" for key, labels in rows.items() if labels]
    return f"Assumptions: {'; '.join(parts)}." if parts else ""


def verification_note(table: Table) -> str:
    """Say how many runs are confirmed, and how many nobody has checked."""
    statuses = [status for row in table.rows for status in row.verification.values()]
    partial = {status for status in statuses if status.rounds < status.of}
    weakest = {status: min(partial) for status in partial}  # many numbers of rounds would fill the note
    counts = count_statuses(weakest.get(status, status) for status in statuses)
    parts = [f"{count} {status}" for status, count in counts.items()]
    if len(partial) > 1:
        parts = [part.replace(" in ", " in at least ") for part in parts]
    published = sum(record.published for record in table.records)
    shipped = f"; {published} are published with this package" if published else ""
    return f"Verification of {len(statuses)} run{'s' * (len(statuses) > 1)}: {', '.join(parts)}{shipped}."


def resolution_notes(table: Table) -> list[str]:
    """Explain what the seeds of a table can show: places, ties and detectable differences."""
    over = "Avg" if len(table.scored) > 1 else table.scored[0]
    notes = []
    if table.standings:
        drawn = (
            "settings, then seeds"
            if len(table.scored) >= FEWEST_SETTINGS
            else "seeds, so the statements are about these settings alone"
        )
        notes.append(
            f"{PLACE.capitalize()}: {100 * PLACE_LEVEL:.0f} % interval of the place in the order by {over}; "
            f"{FIRST}: probability of being first. Rows that share a letter tie: the "
            f"{100 * LEVEL:.0f} % interval of their difference contains 0. By a paired bootstrap over "
            f"{drawn} ({DRAWS} draws)."
        )
        if any(row.average and row.label not in table.standings for row in table.rows):
            notes.append(
                "Rows with one seed in a setting have no place; the others have places among themselves."
            )
    elif sum(row.average is not None for row in table.rows) > 1:
        notes.append(
            "No places: one seed does not show how much results vary between seeds; run at least two."
        )
    if table.detectable:
        notes.append(
            "Detectable: the smallest true difference of two rows that these seeds show in 80 % of all cases "
            "(paired t-test, 5 %)."
        )
    return notes


def _test_notes(table: Table, against: str, tests: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Explain the marks of tests, and why there are none."""
    needed = least_pairs(len(table.settings))
    if not tests:
        return []
    text = (
        f"+ and −: significantly better and worse than {against} in a setting (Wilcoxon signed-rank test "
        "over its seeds, 5 %, Holm's correction over the settings of a row)."
    )
    if table.seeds < needed:
        return [f"No marks of significance: {table.seeds} seeds cannot show any; {needed} are needed."]
    return [text]


def _rows_with(table: Table, setting: str) -> str:
    return f"{sum(setting in row.cells for row in table.rows)} of {len(table.rows)}"


def seed_sets(table: Table) -> str:
    """Write the sets of seeds in a table."""
    return " | ".join(", ".join(map(str, seeds)) for seeds in table.seed_sets)
