"""The contents of the pages of a report, as plain values for templates and for the scripts in the pages."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flnl_bench.leaderboards.metrics import ALL_METRICS, COST_COLUMNS, Metric, run_cost
from flnl_bench.leaderboards.pandas_api import Results
from flnl_bench.leaderboards.paper import OVERALL, agreements, both_protocols, compared_with, paper_cells
from flnl_bench.leaderboards.render import DIVERGED_NOTE, FIRST, OWN, PLACE, resolution_notes
from flnl_bench.leaderboards.table import Cell, Row, Table, make_tables, table_warnings
from flnl_bench.results.run_record import METRICS, RoundRow, RunRecord

DECIMALS_SHOWN = 4  # of a number: more than a page shows
POINTS = 200  # of a curve: more than a chart can show
CURVES = {  # numbers of a round or of its diagnostics, with their titles
    "accuracy": "Test accuracy (%)",
    "memorised": "Wrong labels memorised (%)",
    "sieve_f_score": "F-score of the samples called clean",
    "loss": "Test loss",
}
COST_UNITS = {
    "megabytes_down": ("down", "MB per client and round"),
    "megabytes_up": ("up", "MB per client and round"),
    "forward": ("forward", "passes per sample and round"),
    "backward": ("backward", "passes per sample and round"),
    "mixtures": ("mixtures fitted", "per round"),
    "searches": ("neighbour searches", "per round"),
    "seconds": ("time", "s per round"),
}
COST_METRICS = [
    Metric(name, f"cost: {header}", higher=False, digits=3) for name, header in COST_COLUMNS.items()
]
Curve: TypeAlias = np.ndarray  # by round, NaN where the number is unknown
Curves = dict[str, Curve]


def slugs_of(names: Iterable[str]) -> list[str]:
    """Return a different file name for each name, of letters, digits, dots and dashes."""
    slugs: dict[str, None] = {}
    numbers: Counter[str] = Counter()
    for name in names:
        stem = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:80] or "unnamed"
        slug = stem
        while not numbers[stem] or slug in slugs:
            numbers[stem] += 1
            slug = f"{stem}-{numbers[stem]}" if numbers[stem] > 1 else stem
        slugs[slug] = None
    return list(slugs)


class Report:
    """The finished runs of a folder as the leaderboard groups them, and the contents of their pages."""

    def __init__(self, results: Results) -> None:
        """Group the runs, and name the pages of runs and methods."""
        self.results = results
        self.tables = make_tables(results.finished)
        self.best = {table.protocol.title: table.of("best") for table in self.tables}
        self._best_rows = {
            row: best
            for table in self.tables
            for row, best in zip(table.rows, self.best[table.protocol.title].rows, strict=True)
        }
        self.records = [record for table in self.tables for record in table.records]
        self.warnings = table_warnings(self.tables)
        folders, names = [record.folder for record in self.records], map(_run_name, self.records)
        self.run_slugs = dict(zip(folders, slugs_of(names), strict=True))
        self._rows: dict[str, list[tuple[Table, Row]]] = defaultdict(list)  # by label, in the paper's order
        for table in self.tables:
            for row in table.rows:
                self._rows[row.label].append((table, row))
        self.method_slugs = dict(zip(self._rows, slugs_of(self._rows), strict=True))
        self._rounds: dict[Path, tuple[Curves, RoundRow]] = {}

    # -- runs ----------------------------------------------------------------------------------------
    def _read(self, record: RunRecord) -> tuple[Curves, RoundRow]:
        """Return the curves and the last round; the other rounds are not kept, because they are large."""
        if record.folder not in self._rounds:
            try:
                rows = record.read_rounds()
            except ValueError:  # not a file of flnl-bench
                rows = []
            known = [(row.get("diagnostics") or {}, row) for row in rows]
            curves = {name: curve_of([d.get(name, row.get(name)) for d, row in known]) for name in CURVES}
            self._rounds[record.folder] = curves, {**rows[-1], **known[-1][0]} if rows else {}
        return self._rounds[record.folder]

    def curves(self, record: RunRecord) -> Curves:
        """Return the numbers of a run by round, by the names of CURVES."""
        return self._read(record)[0]

    def values(self, record: RunRecord) -> dict[str, float | None]:
        """Return the number of a run by each metric, and its costs."""
        last = self._read(record)[1]
        known = {name: getattr(record, name) if name in METRICS else last.get(name) for name in ALL_METRICS}
        return {name: rounded(value) for name, value in {**known, **run_cost(record)}.items()}

    def diagnostics(self, record: RunRecord) -> dict[str, float]:
        """Return the diagnostics of the last round that are single numbers."""
        values = self._read(record)[1].get("diagnostics") or {}
        return {name: value for name, value in values.items() if isinstance(value, int | float)}

    def charts(self, record: RunRecord) -> dict[str, Any]:
        """Return the thinned curves of a run that have a number."""
        curves = self.curves(record)
        places = thinned(len(curves["accuracy"]))
        return {
            "round": [place + 1 for place in places],
            "curves": {name: plain(curve[places]) for name, curve in curves.items() if is_known(curve)},
        }

    # -- for the scripts -----------------------------------------------------------------------------
    def board(self) -> dict[str, Any]:
        """Return the data of the leaderboard page: every run with its numbers, for the filters."""
        return {
            "metrics": [
                {"name": m.name, "help": m.help, "higher": m.higher, "digits": m.digits}
                for m in (*ALL_METRICS.values(), *COST_METRICS)
            ],
            "labels": self.method_slugs,
            "diverged": DIVERGED_NOTE,
            "columns": {"place": PLACE, "first": FIRST, "own": OWN},
            "tables": [self._table(table) for table in self.tables],
        }

    def _table(self, table: Table) -> dict[str, Any]:
        protocol, config = table.protocol, table.protocol.config
        text, comparable = both_protocols(table)
        cells = agreements(table)
        accuracies = dict(zip(METRICS, (table, self.best[protocol.title]), strict=True))
        order = cells.get(OVERALL)
        return {
            "title": protocol.title,
            "dataset": config.dataset,
            "partition": config.partition,
            "preset": config.preset,
            "line": protocol.line,
            "settings": table.settings,
            "scored": table.scored,
            "standings": {name: dict(numbered.standings) for name, numbered in accuracies.items()},
            "detectable": {name: numbered.detectable for name, numbered in accuracies.items()},
            "resolution": resolution_notes(table),
            "alarms": table.alarms,
            "paper": {"text": text, "comparable": comparable},
            "order": order
            and {
                "of": " · ".join(compared_with(table)),
                "spearman": rounded(order.spearman),
                "kendall": rounded(order.kendall),
                "cells": len(cells) - 1,
            },
            "rows": [
                {
                    "label": row.label,
                    "own": row.own and not all(other.own for other in table.rows),
                    "runs": [self._run(record) for record in row.records],
                    "paper": {
                        metric: {name: [cell.mean, cell.std] for name, cell in cells.items()}
                        for metric in METRICS
                        for cells in (self.paper_of(table, row, metric),)
                    },
                }
                for row in table.rows
            ],
        }

    def _run(self, record: RunRecord) -> list[Any]:
        config, slug = record.config, self.run_slugs[record.folder]
        return [config.setting, config.seed, slug, record.diverged, *self.values(record).values()]

    def method(self, label: str) -> dict[str, Any]:
        """Return the data of a method's page and of its comparisons: curves and the numbers of its runs."""
        cells = []
        for table, row in self.rows_of(label):
            for setting in table.settings:
                records = list(row.runs.get(setting, {}).values())
                if records:
                    values = {r.config.seed: [rounded(getattr(r, m)) for m in METRICS] for r in records}
                    curves = {name: mean_curve([self.curves(r)[name] for r in records]) for name in CURVES}
                    cells.append(
                        {
                            "table": table.protocol.title,
                            "setting": setting,
                            "values": values,
                            "diverged": [r.config.seed for r in records if r.diverged],
                            "curves": {name: curve for name, curve in curves.items() if curve},
                        }
                    )
        return {"label": label, "cells": cells}

    # -- for the templates ---------------------------------------------------------------------------
    def rows_of(self, label: str) -> list[tuple[Table, Row]]:
        """Return the tables that have a row with this label, and the rows."""
        return self._rows[label]

    def row_of(self, table: Table, row: Row, metric: str) -> tuple[Table, Row]:
        """Return a table and a row of it with the numbers of another accuracy."""
        if metric == table.metric:
            return table, row
        other = self.best[table.protocol.title]
        return other, self._best_rows[row]

    def paper_of(self, table: Table, row: Row, metric: str) -> dict[str, Cell]:
        """Return the paper's numbers for a row, by setting."""
        return paper_cells(*self.row_of(table, row, metric))

    def cell_text(self, cell: Cell | None) -> str:
        """Write a cell."""
        if cell is None:
            return ""
        spread = f" ± {cell.std:.2f}" if cell.std is not None else ""
        return f"{cell.mean:.2f}{spread}" + (f" ✗{len(cell.diverged)}" if cell.diverged else "")

    def cost_facts(self, numbers: Mapping[str, float | None]) -> dict[str, str]:
        """Write costs with their units."""
        return {
            title: "–" if (value := numbers[name]) is None else f"{value:.4g} {unit}"
            for name, (title, unit) in COST_UNITS.items()
        }

    def provenance(self, record: RunRecord) -> dict[str, Any]:
        """Return the versions, the machine, the code and the times of a run."""
        about = {**record.provenance, **record.provenance.get("libraries", {})}
        code = about.pop("code", {})
        about.pop("libraries", None)
        digests = {f"code of the {kind}": digest for kind, digest in code.items()}
        times = {"started": record.started, "ended": record.ended, "resumed": record.resumed or None}
        origin = {"imported from": record.imported_from, "label": record.label}
        return {k: v for k, v in {**about, **digests, **times, **origin}.items() if v is not None}

    def files(self, record: RunRecord) -> dict[str, int]:
        """Return the files of a run and their sizes."""
        paths = sorted(path for path in record.folder.iterdir() if path.is_file() and path.name[0] != ".")
        return {path.name: path.stat().st_size for path in paths}


def _run_name(record: RunRecord) -> str:
    config = record.config
    names = (config.method, config.dataset, config.partition, config.setting, f"s{config.seed}")
    return "-".join((*names, record.folder.name[-8:]))


def curve_of(values: Iterable[object]) -> Curve:
    """Return the values as rounded numbers; NaN for a value that is not a finite number."""
    curve = np.array([value if isinstance(value, int | float) else math.nan for value in values], float)
    return np.round(np.where(np.isfinite(curve), curve, math.nan), DECIMALS_SHOWN)


def is_known(curve: Curve) -> bool:
    """Return whether a curve has a number."""
    return not np.isnan(curve).all()


def plain(curve: Curve) -> list[float | None]:
    """Return the numbers of a curve, with None where they are unknown."""
    return [None if value != value else value for value in curve.tolist()]


def mean_curve(curves: Iterable[Curve]) -> dict[str, list[Any]] | None:
    """Return mean, minimum and maximum over the seeds that know, by round, thinned; None if none does."""
    known = [curve for curve in curves if is_known(curve)]
    if not known:
        return None
    places = thinned(min(map(len, known)))
    numbers = np.ma.masked_invalid([curve[places] for curve in known])
    lines = {"mean": numbers.mean(0).round(DECIMALS_SHOWN), "low": numbers.min(0), "high": numbers.max(0)}
    return {"round": [place + 1 for place in places]} | {
        name: plain(line.filled(math.nan)) for name, line in lines.items()
    }


def thinned(length: int) -> list[int]:
    """Return at most POINTS places of a curve, with the last."""
    step = max(1, math.ceil(length / POINTS))
    return list(range((length - 1) % step, length, step))


def rounded(value: object) -> float | None:
    """Round to more decimals than a page shows; None for a value that is not a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(value, DECIMALS_SHOWN)
