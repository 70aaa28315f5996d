"""What the pages of a report show, as plain values for templates and for the scripts in the pages."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flnl_bench.leaderboards.agreement import OVERALL, agreements, compared_with
from flnl_bench.leaderboards.classes import class_recall
from flnl_bench.leaderboards.comparability import Group, group
from flnl_bench.leaderboards.cost import COLUMNS, run_cost
from flnl_bench.leaderboards.metrics import METRICS, Metric
from flnl_bench.leaderboards.paper import paper_cells, protocols
from flnl_bench.leaderboards.runs import FinishedRun, finished_run
from flnl_bench.leaderboards.table import Cell, Row, Table, make_table
from flnl_bench.results.run_folder import Records, RunFolder
from flnl_bench.results.run_record import Row as Round
from flnl_bench.results.run_record import RunRecord

ACCURACIES = ("last10", "best")  # that the paper has, too
POINTS = 200  # of a curve: more than a chart has room for
CURVES = {  # by round, of a line of rounds.jsonl or of its diagnostics
    "accuracy": "Test accuracy (%)",
    "memorised": "Wrong labels memorised (%)",
    "sieve_f_score": "F-score of what is called clean",
    "loss": "Test loss",
}
COST_UNITS = {
    "megabytes_down": ("down", "MB a client and round"),
    "megabytes_up": ("up", "MB a client and round"),
    "forward": ("forward", "passes a sample and round"),
    "backward": ("backward", "passes a sample and round"),
    "mixtures": ("mixtures fitted", "a round"),
    "searches": ("neighbour searches", "a round"),
    "seconds": ("time", "s a round"),
}
COST_METRICS = [Metric(name, f"cost: {header}", higher=False, digits=3) for name, header in COLUMNS.items()]


class Slugs:
    """Names of files for names of anything: letters, digits, dots and dashes, no two alike."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def make(self, *words: object) -> str:
        """A name that was not given before."""
        name = re.sub(r"[^a-z0-9.]+", "-", "-".join(map(str, words)).lower()).strip("-.")[:80] or "unnamed"
        made, number = name, 1
        while made in self.taken:
            number += 1
            made = f"{name}-{number}"
        self.taken.add(made)
        return made


@dataclass(frozen=True)
class RunPage:
    """A finished run and where its page is."""

    run: FinishedRun
    record: RunRecord
    slug: str

    @cached_property
    def seen(self) -> tuple[dict[str, list[float | None]], Round]:
        """The curves, and the last round; the other rounds are not kept, they are large."""
        try:
            rounds = RunFolder(self.run.path).read_rounds()
        except ValueError:  # not ours
            rounds = []
        flat = [{**row, **(row.get("diagnostics") or {})} for row in rounds]
        return {name: [rounded(row.get(name)) for row in flat] for name in CURVES}, flat[-1] if flat else {}

    @property
    def curves(self) -> dict[str, list[float | None]]:
        """Numbers by round, by the names of CURVES."""
        return self.seen[0]

    @cached_property
    def values(self) -> dict[str, float | None]:
        """Its number by each metric, cost included."""
        known = {name: self.run.values.get(name, self.seen[1].get(name)) for name in METRICS}
        numbers = {**known, **run_cost(self.run)}
        return {name: rounded(value) for name, value in numbers.items()}

    @property
    def diagnostics(self) -> dict[str, float]:
        """What the recorder found after the last round, as far as it is single numbers."""
        found = self.seen[1].get("diagnostics") or {}
        return {name: value for name, value in found.items() if isinstance(value, int | float)}

    @property
    def recalls(self) -> list[float | None]:
        """Right labels that are called clean, by class."""
        return class_recall(self.run.path / "beliefs.npz")

    @property
    def files(self) -> dict[str, int]:
        """The files of the run and their sizes."""
        found = sorted(path for path in self.run.path.iterdir() if path.is_file() and path.name[0] != ".")
        return {path.name: path.stat().st_size for path in found}


@dataclass(frozen=True)
class Place:
    """One table of the report: a group of comparable runs, by each accuracy."""

    number: int
    group: Group
    tables: Mapping[str, Table]  # by accuracy

    @property
    def main(self) -> Table:
        """The table of the headline."""
        return self.tables[ACCURACIES[0]]


class Report:
    """Everything that is shown about the finished runs of a folder."""

    def __init__(self, found: Records, folder: Path) -> None:
        """Group the runs as the leaderboard does, and give each its page."""
        self.folder, self.found = folder, found
        slugs = Slugs()
        runs = {path: finished_run(record, path) for path, record in found.done.items()}
        groups, self.warnings = group(runs.values())
        self.pages: dict[Path, RunPage] = {}
        for run in (run for one in groups for run in one.runs):
            names = (run.method, run.dataset, run.partition, run.setting, f"s{run.seed}", run.path.name[-8:])
            self.pages[run.path] = RunPage(run, found.done[run.path], slugs.make(*names))
        self.places = [
            Place(number, one, {name: make_table(one, name) for name in ACCURACIES})
            for number, one in enumerate(groups)
        ]
        labels = dict.fromkeys(row.label for place in self.places for row in place.group.rows)
        self.slugs = {label: slugs.make(label) for label in labels}  # of the rows, in the paper's order

    # -- for the scripts ---------------------------------------------------------------------------------
    def board(self) -> dict[str, Any]:
        """The data of the leaderboard page: every run with its numbers, so that it can be filtered."""
        return {
            "metrics": [
                {"name": m.name, "help": m.help, "higher": m.higher, "digits": m.digits}
                for m in (*METRICS.values(), *COST_METRICS)
            ],
            "labels": self.slugs,
            "tables": [self._table(place) for place in self.places],
        }

    def _table(self, place: Place) -> dict[str, Any]:
        about, table = place.group.protocol, place.main
        text, comparable = protocols(table)
        found = agreements(table)
        order = found.get(OVERALL)
        return {
            "title": about.title,
            "dataset": about.dataset,
            "partition": about.partition,
            "preset": about.preset,
            "line": about.line,
            "settings": list(table.settings),
            "scored": list(table.scored),
            "alarms": list(table.alarms),
            "paper": {"told": text, "comparable": comparable},
            "order": order
            and {
                "dataset": compared_with(table),
                "spearman": rounded(order.spearman),
                "kendall": rounded(order.kendall),
                "cells": len(found) - 1,
            },
            "rows": [
                {
                    "label": runs.label,
                    "runs": [self._run(run) for seeds in runs.cells.values() for run in seeds.values()],
                    "paper": self._paper(place, number),
                }
                for number, runs in enumerate(place.group.rows)
            ],
        }

    def _run(self, run: FinishedRun) -> list[Any]:
        page = self.pages[run.path]
        return [run.setting, run.seed, page.slug, *page.values.values()]

    def _paper(self, place: Place, number: int) -> dict[str, Any]:
        """The paper's mean and deviation by metric and setting."""
        return {
            name: {setting: [cell.mean, cell.std] for setting, cell in paper_cells(t, t.rows[number]).items()}
            for name, t in place.tables.items()
        }

    def method(self, label: str) -> dict[str, Any]:
        """The data of a row's page and of comparisons with it: its curves and the numbers of its runs."""
        cells = []
        for place, runs in self.rows_of(label):
            for setting in place.main.settings:
                pages = [self.pages[run.path] for run in runs.cells.get(setting, {}).values()]
                if pages:
                    values = {page.run.seed: [page.values[name] for name in ACCURACIES] for page in pages}
                    curves = {name: mean_curve([page.curves[name] for page in pages]) for name in CURVES}
                    cells.append(
                        {
                            "table": place.group.protocol.title,
                            "setting": setting,
                            "values": values,
                            "curves": {name: curve for name, curve in curves.items() if curve},
                        }
                    )
        return {"label": label, "cells": cells}

    # -- for the templates -------------------------------------------------------------------------------
    def rows_of(self, label: str) -> list[tuple[Place, Any]]:
        """The tables that have a row called so, with its runs."""
        return [(place, runs) for place in self.places for runs in place.group.rows if runs.label == label]

    def row_of(self, place: Place, label: str, metric: str = ACCURACIES[0]) -> Row:
        """The row called so, with its numbers."""
        return next(row for row in place.tables[metric].rows if row.label == label)

    def paper_of(self, place: Place, label: str, metric: str) -> dict[str, Cell]:
        """The paper's numbers for a row, by setting."""
        return paper_cells(place.tables[metric], self.row_of(place, label, metric))

    def told(self, cell: Cell | None) -> str:
        """A cell for people."""
        if cell is None:
            return ""
        return f"{cell.mean:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")

    def cost_facts(self, numbers: Mapping[str, float | None]) -> dict[str, str]:
        """Costs with their units."""
        return {
            words: "not counted" if (value := numbers[name]) is None else f"{value:.4g} {unit}"
            for name, (words, unit) in COST_UNITS.items()
        }

    def provenance(self, record: RunRecord) -> dict[str, Any]:
        """Who made a run, where and when."""
        about = {**record.provenance, **record.provenance.get("libraries", {})}
        about.pop("libraries", None)
        if isinstance(code := about.pop("code", None), dict):
            about |= {f"digest of the code of the {kind}": digest for kind, digest in code.items()}
        times = {"started": record.started, "ended": record.ended, "resumed": record.resumed or None}
        origin = {"imported from": (record.imported or {}).get("file"), "called": record.label}
        return {k: v for k, v in {**about, **times, **origin}.items() if v is not None}


def mean_curve(curves: Iterable[Sequence[float | None]]) -> dict[str, list[Any]] | None:
    """Mean, least and most over seeds by round, thinned; None if nothing is known."""
    known = [curve for curve in curves if curve and any(value is not None for value in curve)]
    if not known:
        return None
    made: dict[str, list[Any]] = defaultdict(list)
    for place in thinned(min(map(len, known))):
        values = [value for curve in known if (value := curve[place]) is not None]
        made["round"].append(place + 1)
        made["mean"].append(rounded(statistics.fmean(values)) if values else None)
        made["low"].append(min(values, default=None))
        made["high"].append(max(values, default=None))
    return dict(made)


def thinned(length: int) -> list[int]:
    """At most POINTS places of a curve, the last among them."""
    step = max(1, math.ceil(length / POINTS))
    return list(range((length - 1) % step, length, step))


def rounded(value: object) -> float | None:
    """Four decimals are more than a page shows; what is no number is unknown."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(value, 4)
