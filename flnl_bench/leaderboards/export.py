"""Leaderboards for programs: a JSON document, and tidy records for CSV and pandas, with all digits."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flnl_bench import escaping
from flnl_bench.atomic_files import json_text
from flnl_bench.engine.ledger import PER
from flnl_bench.leaderboards.agreement import agreements, compared_with
from flnl_bench.leaderboards.comparison import Comparison, comparisons
from flnl_bench.leaderboards.cost import COLUMNS
from flnl_bench.leaderboards.metrics import COST
from flnl_bench.leaderboards.paper import paper_average, paper_cells, protocols, unlike_paper
from flnl_bench.leaderboards.render import notes_of
from flnl_bench.leaderboards.table import Cell, Row, Table, marks

if TYPE_CHECKING:
    from flnl_bench.leaderboards.leaderboard import Leaderboard

_TABLE = ("dataset", "partition", "preset", "protocol", "device", "numbers")
_PROTOCOL = tuple(name for name in _TABLE if name != "protocol")  # as the attributes are called
_ROW = ("method", "label", "version", "codes", "hyperparameters")
_CELL = ("setting", "metric", "mean", "std", "count", "seeds", "mark", "rank")
_PAPER = ("paper_protocol", "paper_mean", "paper_std", "difference_to_paper")
_COST = (*COLUMNS, *(f"sent_per_{per}" for per in PER), "leaves")
_COMPARISON = ("against", *(f.name for f in dataclasses.fields(Comparison)))


# -- JSON --------------------------------------------------------------------------------------------
def as_json(board: Leaderboard) -> str:
    """One JSON document: the tables, and what was kept apart or left out."""
    document = {
        "metric": board.metric,
        "against": board.against,
        "tables": [_table_object(table, board) for table in board.tables],
        "warnings": list(board.warnings),
        "not_counted": {str(path): why for path, why in board.problems.items()},
        "unfinished": {str(path): status for path, status in board.unfinished.items()},
    }
    return json_text(document, indent=2) + "\n"


def _table_object(table: Table, board: Leaderboard) -> dict[str, Any]:
    about = table.protocol
    made: dict[str, Any] = {
        "title": about.title,
        **{name: getattr(about, name) for name in _PROTOCOL},
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
    if board.paper:
        text, comparable = protocols(table)
        made["paper"] = {"protocols": text, "comparable": comparable, "not_beside": unlike_paper(table)}
        order = {name: dataclasses.asdict(one) for name, one in agreements(table).items()}
        made["paper"]["agreement"] = {"dataset": compared_with(table), "cells": order} if order else None
    found = comparisons(table, board.against) if board.against else {}
    made["rows"] = [
        {
            **_row_object(table, row, board.paper, found.get(row.label)),
            "marks": {column: mark for column, mark in marked.items() if mark},
        }
        for row, marked in zip(table.rows, marks(table), strict=True)
    ]
    return made


def _row_object(table: Table, row: Row, paper: bool, compared: Comparison | None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "method": row.method,
        "label": row.label,
        "version": row.version,
        "codes": row.codes,
        "hyperparameters": dict(row.hyperparameters),
        "changed": None if row.changed is None else dict(row.changed),
        "cells": {name: {**_cell(cell), "rank": row.ranks.get(name)} for name, cell in row.cells.items()},
        "avg": _cell(row.average) if row.average else None,
        "rank": row.rank,
        "cost": {**row.cost.as_dict(), "sent": row.cost.sent},
    }
    if paper:
        cells = paper_cells(table, row)
        made["paper"] = {name: {"mean": cell.mean, "std": cell.std} for name, cell in cells.items()}
        average = paper_average(cells, table.scored)
        made["paper_avg"] = average.mean if average else None
    if compared:
        made["against"] = dataclasses.asdict(compared)
    return made


def _cell(cell: Cell) -> dict[str, Any]:
    return {"mean": cell.mean, "std": cell.std, "count": cell.count, "seeds": dict(cell.values)}


# -- tidy records ------------------------------------------------------------------------------------
def as_csv(board: Leaderboard) -> str:
    """One line a record: readable by anything, and by `csv.DictReader` without loss."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns(board), restval="", lineterminator="\n")
    writer.writeheader()
    for record in records(board):
        cells = {**record, "hyperparameters": json.dumps(record["hyperparameters"])}
        if "seeds" in record:
            cells["seeds"] = " ".join(map(str, record["seeds"]))
        writer.writerow({name: escaping.csv(value) for name, value in cells.items()})
    return out.getvalue()


def columns(board: Leaderboard) -> tuple[str, ...]:
    """The names of a record's fields, in their order."""
    if board.metric == COST:
        return (*_TABLE, *_ROW, *_COST)
    more = (*(_PAPER if board.paper else ()), *(_COMPARISON if board.against else ()))
    return (*_TABLE, *_ROW, *_CELL, *more)


def records(board: Leaderboard) -> list[dict[str, Any]]:
    """One a cell, and one with the setting `avg` a row, which has the comparison; absent is unknown.

    Of costs, one a row.
    """
    if board.metric == COST:
        return [
            {**_identity(table, row), **row.cost.as_dict()} for table in board.tables for row in table.rows
        ]
    return [record for table in board.tables for record in _table_records(table, board)]


def _table_records(table: Table, board: Leaderboard) -> Iterator[dict[str, Any]]:
    found = comparisons(table, board.against) if board.against else {}
    for row, marked in zip(table.rows, marks(table), strict=True):
        theirs = paper_cells(table, row) if board.paper else {}
        for name in table.settings:
            if name in row.cells:
                record = _record(table, row, name, row.cells[name], theirs.get(name))
                yield {**record, "rank": row.ranks.get(name), "mark": marked[name]}
        average = _record(table, row, "avg", row.average, paper_average(theirs, table.scored))
        compared = found.get(row.label)
        more = {"against": board.against, **dataclasses.asdict(compared)} if compared else {}
        yield {**average, "rank": row.rank, "mark": marked["Avg"], **more}


def _record(table: Table, row: Row, setting: str, cell: Cell | None, theirs: Cell | None) -> dict[str, Any]:
    return {
        **_identity(table, row),
        "setting": setting,
        "metric": table.metric,
        "seeds": tuple(cell.values) if cell else (),
        **({"mean": cell.mean, "std": cell.std, "count": cell.count} if cell else {}),
        **_paper_fields(cell, theirs),
    }


def _identity(table: Table, row: Row) -> dict[str, Any]:
    about = table.protocol
    return {
        **{name: getattr(about, name) for name in _PROTOCOL},
        "protocol": about.name,
        **{name: getattr(row, name) for name in _ROW},
        "hyperparameters": dict(row.hyperparameters),
    }


def _paper_fields(ours: Cell | None, theirs: Cell | None) -> Mapping[str, Any]:
    if theirs is None:
        return {}
    return {
        "paper_protocol": "paper",
        "paper_mean": theirs.mean,
        "paper_std": theirs.std,
        "difference_to_paper": ours.mean - theirs.mean if ours else None,
    }
