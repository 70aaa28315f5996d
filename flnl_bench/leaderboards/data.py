"""Tables for programs: JSON objects and tidy CSV, with all digits."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from flnl_bench.files import json_text
from flnl_bench.leaderboards.comparison import Comparison, comparisons
from flnl_bench.leaderboards.paper import paper_average, paper_cells, protocols, unlike_paper
from flnl_bench.leaderboards.runs import Found
from flnl_bench.leaderboards.sheet import notes_of
from flnl_bench.leaderboards.table import Cell, Row, Table, marks

_TABLE = ("dataset", "partition", "preset", "protocol", "device", "numbers")
_ROW = ("method", "label", "hyperparameters")
_CELL = ("setting", "metric", "mean", "std", "count", "seeds", "mark", "rank")
_PAPER = ("paper_protocol", "paper_mean", "paper_std", "difference_to_paper")
_VERSUS = ("against", *(f.name for f in dataclasses.fields(Comparison)))


def as_json(
    found: Found, tables: Sequence[Table], warnings: Sequence[str], *, paper: bool, against: str | None
) -> str:
    """One JSON document: the tables, and what was kept apart or left out."""
    document = {
        "metric": tables[0].metric,
        "against": against,
        "tables": [as_object(table, paper=paper, against=against) for table in tables],
        "warnings": list(warnings),
        "not_counted": {str(path): why for path, why in found.problems.items()},
        "unfinished": {str(path): status for path, status in found.unfinished.items()},
    }
    return json_text(document, indent=2) + "\n"


def as_object(table: Table, *, paper: bool, against: str | None) -> dict[str, Any]:
    """A table as a JSON object."""
    about = table.protocol
    made: dict[str, Any] = {
        "title": about.title,
        **{name: getattr(about, name) for name in ("dataset", "partition", "preset", "device", "numbers")},
        "training": dict(about.training),
        "changed": about.changed,
        "metric": table.metric,
        "std": "sample standard deviation (ddof 1)",
        "settings": list(table.settings),
        "averaged": list(table.scored),
        "scenarios": table.scenarios,
        "imported": dict(table.imported),
        "notes": notes_of(table),
        "alarms": list(table.alarms),
    }
    if paper:
        text, comparable = protocols(table)
        made["paper"] = {"protocols": text, "comparable": comparable, "not_beside": unlike_paper(table)}
    found = comparisons(table, against) if against else {}
    made["rows"] = [
        {
            **_row_object(table, row, paper, found.get(row.label)),
            "marks": {column: mark for column, mark in marked.items() if mark},
        }
        for row, marked in zip(table.rows, marks(table), strict=True)
    ]
    return made


def _row_object(table: Table, row: Row, paper: bool, versus: Comparison | None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "method": row.method,
        "label": row.label,
        "version": row.version,
        "hyperparameters": dict(row.hyperparameters),
        "changed": None if row.changed is None else dict(row.changed),
        "cells": {name: {**_cell(cell), "rank": row.ranks.get(name)} for name, cell in row.cells.items()},
        "avg": _cell(row.average) if row.average else None,
        "rank": row.rank,
    }
    if paper:
        cells = paper_cells(table, row)
        made["paper"] = {name: {"mean": cell.mean, "std": cell.std} for name, cell in cells.items()}
        average = paper_average(cells, table.scored)
        made["paper_avg"] = average.mean if average else None
    if versus:
        made["against"] = dataclasses.asdict(versus)
    return made


def _cell(cell: Cell) -> dict[str, Any]:
    return {"mean": cell.mean, "std": cell.std, "count": cell.count, "seeds": dict(cell.values)}


def as_csv(tables: Sequence[Table], *, paper: bool, against: str | None) -> str:
    """One line a cell, and a line `avg` a row: readable by anything, and by `csv.DictReader` without loss."""
    out = io.StringIO()
    names = (*_TABLE, *_ROW, *_CELL, *(_PAPER if paper else ()), *(_VERSUS if against else ()))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for table in tables:
        found = comparisons(table, against) if against else {}
        for row, marked in zip(table.rows, marks(table), strict=True):
            theirs = paper_cells(table, row) if paper else {}
            for line in _csv_lines(table, row, theirs):
                writer.writerow({**line, "mark": marked[line["setting"]]})
            versus = found.get(row.label)
            average = _csv_line(table, row, "avg", row.average, paper_average(theirs, table.scored))
            compared = {"against": against, **dataclasses.asdict(versus)} if versus else {}
            writer.writerow({**average, "mark": marked["Avg"], **compared})
    return out.getvalue()


def _csv_lines(table: Table, row: Row, theirs: Mapping[str, Cell]) -> list[dict[str, Any]]:
    return [
        _csv_line(table, row, name, row.cells[name], theirs.get(name))
        for name in table.settings
        if name in row.cells
    ]


def _csv_line(table: Table, row: Row, setting: str, cell: Cell | None, theirs: Cell | None) -> dict[str, Any]:
    about = table.protocol
    return {
        **{name: getattr(about, name) for name in ("dataset", "partition", "preset", "device", "numbers")},
        "protocol": about.name,
        "method": row.method,
        "label": row.label,
        "hyperparameters": json.dumps(dict(row.hyperparameters)),
        "setting": setting,
        "metric": table.metric,
        "rank": row.rank if setting == "avg" else row.ranks.get(setting),
        **(_csv_numbers(cell) if cell else {}),
        **_csv_paper(cell, theirs),
    }


def _csv_numbers(cell: Cell) -> Mapping[str, Any]:
    seeds = " ".join(map(str, cell.values))
    return {"mean": cell.mean, "std": cell.std, "count": cell.count, "seeds": seeds}


def _csv_paper(ours: Cell | None, theirs: Cell | None) -> Mapping[str, Any]:
    if theirs is None:
        return {}
    difference = ours.mean - theirs.mean if ours else None
    return {
        "paper_protocol": "paper",
        "paper_mean": theirs.mean,
        "paper_std": theirs.std,
        "difference_to_paper": difference,
    }
