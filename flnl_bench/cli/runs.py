"""Runs that a user names: where they are looked for, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from flnl_bench.cli import completion
from flnl_bench.errors import BadInput
from flnl_bench.results.published import published_runs
from flnl_bench.results.run_record import RUN_FILE, RoundRow, RunRecord, read_record

RUNS = Path("results/runs")
RUN_HELP = "Run directory, run.json, or the end of a name below results/runs"


def run_argument(help: str = RUN_HELP, metavar: str = "RUN") -> Any:
    """Declare an argument that names a run."""
    return typer.Argument(metavar=metavar, help=f"{help}.", autocompletion=completion.runs)


def find_run(name: str, *, with_published: bool = False) -> RunRecord:
    """Read a run, named by a path or by the end of its folder's name (such as its hash)."""
    if with_published:
        found = [record for record in published_runs()[0] if record.folder.as_posix().endswith(name)]
        if len(found) == 1:
            return found[0]
    folder = find_folder(name)
    try:
        return read_record(folder)
    except ValueError as problem:
        raise BadInput(f"{folder / RUN_FILE}: {problem}") from None


def find_folder(name: str) -> Path:
    """Find the folder of a run."""
    path = Path(name)
    if path.name == RUN_FILE:
        path = path.parent
    if (path / RUN_FILE).is_file():
        return path
    if path.exists():
        raise BadInput(f"{path} is not a run: it has no run.json")
    ending = path.as_posix()
    folders = sorted(file.parent for file in RUNS.rglob(RUN_FILE) if file.parent.as_posix().endswith(ending))
    if not folders:
        raise BadInput(f"there is no run {name!r}: neither this path nor a path below {RUNS} that ends so")
    if len(folders) > 1:
        raise BadInput(f"{len(folders)} runs end in {name!r}: {', '.join(map(str, folders))}")
    return folders[0]


def rounds_to_show(record: RunRecord) -> list[RoundRow]:
    """Read the rounds of a run; refuse a finished run without rounds."""
    rows = record.read_rounds()
    if record.done and not rows:
        raise BadInput(f"{record.folder} is a finished run, but has no rounds")
    return rows
