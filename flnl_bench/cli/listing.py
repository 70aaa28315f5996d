"""`flnl-bench list`: every name that the other commands take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import print_json, stdout, table
from flnl_bench.cli.names import KINDS, Rows
from flnl_bench.errors import unknown


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[methods|datasets|settings|partitions|models|presets|plugins]",
            help="What to list.",
            show_default="everything",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List methods, data sets, settings, partitions, models, presets and plugins."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    found = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    if as_json:
        print_json(found)
        return
    for number, (name, rows) in enumerate(found.items()):
        if number:
            print()
        print_rows(name, rows)


def print_rows(kind: str, rows: Rows) -> None:
    """One table: a name, then what is to be said about it."""
    made = table("name", "description", title=kind)
    made.show_header = False
    made.columns[0].min_width = 18  # the tables of all kinds line up
    made.columns[0].no_wrap = True
    for row in rows:
        made.add_row(row["name"], "\n".join(_lines(row)))
    stdout().print(made)


def _lines(row: Mapping[str, Any]) -> list[str]:
    """What people read about one name; --json has more."""
    lines = [row["description"]]
    if row.get("source"):
        lines[0] += f" · {row['source'].replace('NAME', row['name'])}"
    if row.get("reference"):
        lines.append(row["reference"])
    if row.get("variants"):
        lines.append(f"variants: {', '.join(row['variants'])}")
    if row.get("hyperparameters"):
        values = ", ".join(f"{key}={about['default']}" for key, about in row["hyperparameters"].items())
        lines.append(f"--set: {values}")
    return lines
