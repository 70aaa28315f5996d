"""Leaderboards for programs: a JSON document, and one line per cell for CSV and pandas, with all digits."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flnl_bench import escaping
from flnl_bench.atomic_files import json_text
from flnl_bench.engine.ledger import PER, sentence
from flnl_bench.leaderboards.comparison import Comparison, comparisons
from flnl_bench.leaderboards.metrics import COST, COST_COLUMNS, sent_numbers
from flnl_bench.leaderboards.paper import (
    agreements,
    both_protocols,
    compared_with,
    paper_average,
    paper_cells,
    without_paper_numbers,
)
from flnl_bench.leaderboards.render import table_notes
from flnl_bench.leaderboards.table import Cell, Row, Table, mark_table
from flnl_bench.results.verified import count_statuses

if TYPE_CHECKING:
    from flnl_bench.leaderboards.pandas_api import Leaderboard

_TABLE = ("dataset", "partition", "preset", "protocol", "device", "numbers")
_ROW = ("method", "label", "version", "codes", "hyperparameters", "assumes")
_CELL = ("setting", "metric", "mean", "std", "count", "seeds", "diverged", "mark", "rank", "verification")
_STANDING = ("place_low", "place_high", "p_best", "letters", "detectable")
_PAPER = ("paper_protocol", "paper_mean", "paper_std", "difference_to_paper")
_COST = (*COST_COLUMNS, *(f"sent_per_{per}" for per in PER), "leaves")
_COMPARISON = ("against", *(field.name for field in dataclasses.fields(Comparison)))


# -- JSON --------------------------------------------------------------------------------------------
def as_json(board: Leaderboard) -> str:
    """Write one JSON document: the tables, the warnings, and the files that were not counted."""
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
    protocol = table.protocol
    values: dict[str, Any] = {
        "title": protocol.title,
        **_protocol_values(table),
        "training": vars(protocol.config.training),
        "changed": protocol.changed,
        "metric": table.metric,
        "std": "sample standard deviation (ddof 1)",
        "settings": table.settings,
        "averaged": table.scored,
        "scenarios": table.scenarios,
        "imported": table.imported,
        "detectable": table.detectable,
        "notes": table_notes(table),
        "alarms": table.alarms,
    }
    if board.paper:
        text, comparable = both_protocols(table)
        cells = {name: dataclasses.asdict(cell) for name, cell in agreements(table).items()}
        dataset, partition = compared_with(table)
        values["paper"] = {
            "protocols": text,
            "comparable": comparable,
            "without_numbers": without_paper_numbers(table),
            "agreement": {"dataset": dataset, "partition": partition, "cells": cells} if cells else None,
        }
    compared = comparisons(table, board.against) if board.against else {}
    values["rows"] = [
        {
            **_row_object(table, row, board.paper, compared.get(row.label)),
            "marks": {column: mark for column, mark in marked.items() if mark},
        }
        for row, marked in zip(table.rows, mark_table(table), strict=True)
    ]
    return values


def _row_object(table: Table, row: Row, paper: bool, comparison: Comparison | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        **{name: getattr(row, name) for name in (*_ROW, "changed")},
        "cells": {name: {**_cell(cell), "rank": row.ranks.get(name)} for name, cell in row.cells.items()},
        "avg": _cell(row.average) if row.average else None,
        "rank": row.rank,
        **standing_values(table, row),
        "verification": count_statuses(row.verification.values()),
        "cost": {**_cost_values(row), "sent": row.sent},
    }
    if paper:
        cells = paper_cells(table, row)
        values["paper"] = {name: {"mean": cell.mean, "std": cell.std} for name, cell in cells.items()}
        average = paper_average(cells, table.scored)
        values["paper_avg"] = average.mean if average else None
    if comparison:
        values["against"] = dataclasses.asdict(comparison)
    return values


def _cell(cell: Cell) -> dict[str, Any]:
    numbers = {"mean": cell.mean, "std": cell.std, "count": cell.count, "seeds": cell.values}
    return {**numbers, "diverged": cell.diverged}


# -- one line per cell -------------------------------------------------------------------------------
def as_csv(board: Leaderboard) -> str:
    """Write one line per cell, which every program and `csv.DictReader` read without loss."""
    out = io.StringIO()
    writer = csv.DictWriter(out, column_names(board), restval="", lineterminator="\n")
    writer.writeheader()
    for line in cell_lines(board):
        texts = {**line, "hyperparameters": json.dumps(line["hyperparameters"])}
        for name in ("assumes", "seeds", "diverged") if "seeds" in line else ("assumes",):
            texts[name] = " ".join(map(str, line[name]))
        writer.writerow({name: escaping.csv(value) for name, value in texts.items()})
    return out.getvalue()


def column_names(board: Leaderboard) -> tuple[str, ...]:
    """Return the names of the values of a line, in their order."""
    if board.metric == COST:
        return (*_TABLE, *_ROW, *_COST)
    more = (*(_PAPER if board.paper else ()), *(_COMPARISON if board.against else ()))
    return (*_TABLE, *_ROW, *_CELL, *_STANDING, *more)


RANKS = (
    "dataset",
    "partition",
    "preset",
    "protocol",
    "device",
    "method",
    "label",
    "mean",
    "rank",
    *_STANDING[:-1],
)


def rank_lines(board: Leaderboard) -> list[dict[str, Any]]:
    """Return a line per row of each table: Avg, mean rank, place, probability of being first, letters."""
    return [
        {
            **_row_values(table, row),
            "mean": row.average.mean if row.average else None,
            "rank": row.rank,
            **standing_values(table, row),
        }
        for table in board.tables
        for row in table.rows
    ]


def standing_values(table: Table, row: Row) -> dict[str, Any]:
    """Return what the seeds say about the place of a row; nothing if they say nothing."""
    standing = table.standings.get(row.label)
    return dict(zip(_STANDING, standing, strict=False)) if standing else {}


def cell_lines(board: Leaderboard) -> list[dict[str, Any]]:
    """Return a line per cell, and one per row with the setting `avg`, which has the comparison.

    Unknown values are absent. A leaderboard of costs has one line per row.
    """
    if board.metric == COST:
        return [
            {**_row_values(table, row), **_cost_values(row)} for table in board.tables for row in table.rows
        ]
    return [line for table in board.tables for line in _table_lines(table, board)]


def _table_lines(table: Table, board: Leaderboard) -> Iterator[dict[str, Any]]:
    compared = comparisons(table, board.against) if board.against else {}
    for row, marked in zip(table.rows, mark_table(table), strict=True):
        theirs = paper_cells(table, row) if board.paper else {}
        for name in table.settings:
            if name in row.cells:
                line = _line(table, row, name, row.cells[name], theirs.get(name))
                seen = {"rank": row.ranks.get(name), "mark": marked[name]}
                yield {**line, **seen, "detectable": table.detectable.get(name)}
        average = _line(table, row, "avg", row.average, paper_average(theirs, table.scored))
        comparison = compared.get(row.label)
        more = {"against": board.against, **dataclasses.asdict(comparison)} if comparison else {}
        seen = {"rank": row.rank, "mark": marked["Avg"], **standing_values(table, row)}
        yield {**average, **seen, **more}


def _line(table: Table, row: Row, setting: str, cell: Cell | None, theirs: Cell | None) -> dict[str, Any]:
    return {
        **_row_values(table, row),
        "setting": setting,
        "metric": table.metric,
        "seeds": tuple(cell.values) if cell else (),
        "diverged": tuple(cell.diverged) if cell else (),
        "verification": str(row.verified(row.runs[setting].values() if setting in row.runs else row.records)),
        **({"mean": cell.mean, "std": cell.std, "count": cell.count} if cell else {}),
        **_paper_values(cell, theirs),
    }


def _protocol_values(table: Table) -> dict[str, Any]:
    config = table.protocol.config
    names = {name: getattr(config, name) for name in ("dataset", "partition", "preset", "device")}
    return {**names, "numbers": table.protocol.record.numbers}


def _row_values(table: Table, row: Row) -> dict[str, Any]:
    names = {name: getattr(row, name) for name in _ROW}
    return {**_protocol_values(table), "protocol": table.protocol.name, **names}


def _cost_values(row: Row) -> dict[str, Any]:
    return {**row.cost, **sent_numbers(row.sent), "leaves": sentence(row.sent)}


def _paper_values(ours: Cell | None, theirs: Cell | None) -> Mapping[str, Any]:
    if theirs is None:
        return {}
    return {
        "paper_protocol": "paper",
        "paper_mean": theirs.mean,
        "paper_std": theirs.std,
        "difference_to_paper": ours.mean - theirs.mean if ours else None,
    }
