"""Import of archives, which others may have made: all is checked before a file is written."""

from __future__ import annotations

import contextlib
import dataclasses
import lzma
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.atomic_files import replace_file
from flnl_bench.engine.ledger import PARTS, PER
from flnl_bench.errors import BadInput, one_line
from flnl_bench.input_files import is_number
from flnl_bench.results.archive import Archive, RunContent, check_version
from flnl_bench.results.beliefs import check_beliefs, write_beliefs
from flnl_bench.results.lock import Busy, claimed
from flnl_bench.results.run_folder import RunFolder, rounds_text
from flnl_bench.results.run_record import (
    BELIEFS_FILE,
    COSTS,
    COUNTS,
    METRICS,
    RUN_FILE,
    STEPS,
    RoundRow,
    RunRecord,
    now,
)

if TYPE_CHECKING:
    import numpy as np

_BROKEN = (
    *(zipfile.BadZipFile, lzma.LZMAError, struct.error, EOFError, MemoryError, OverflowError),
    *(ValueError, LookupError, TypeError, AttributeError, RuntimeError),
)


@dataclass
class Imported:
    """Counts of an import."""

    runs: list[Path] = field(default_factory=list)
    duplicates: int = 0  # runs that are in the folder already, with the same rounds
    refused: dict[Path, str] = field(default_factory=dict)  # folders that hold another run, which stays
    unchecked: Counter[str] = field(
        default_factory=Counter
    )  # why scenarios could not be drawn again, how often


def import_runs(file: Path, out: Path, data_dir: Path | None = None) -> Imported:
    """Add the runs of an exported file to a results folder; the whole file is checked first.

    Scenarios are drawn again and compared, if the data set is at hand.
    """
    from flnl_bench.results.recipe import check_drawn

    with _one_line(file):
        archive, imported = Archive(file), Imported()
        places = set()
        for record, _, arrays in _checked(archive):
            _refuse_links(out, out / record.config.place)
            places.add(record.config.place)
            try:
                if why := check_drawn(record, arrays, data_dir):
                    imported.unchecked[why] += 1
            except ValueError as error:
                raise ValueError(f"{record.config.place}: {error}") from None
        if len(places) < len(archive.lines):
            raise ValueError("it has a run twice")
        for record, rows, arrays in _checked(archive):
            _place(_with_origin(record, file), rows, arrays, out, imported)
        return imported


@contextlib.contextmanager
def _one_line(file: Path) -> Iterator[None]:
    """Turn any fault of an archive into one line."""
    if not file.is_file():
        wrong = f"{file} is a folder, not a file of `flnl-bench results export`"
        raise BadInput(wrong if file.is_dir() else f"there is no file {file}")
    try:
        yield
    except BadInput:
        raise
    except _BROKEN as error:
        why = error if isinstance(error, ValueError) else one_line(error)
        raise BadInput(f"{file} is not a whole file of `flnl-bench results export` ({why})") from None


def _checked(archive: Archive) -> Iterator[RunContent]:
    """Yield the runs of an archive, with the computed summary; a ValueError names the run that is wrong."""
    number = 0
    for place, size in enumerate(archive.sizes):
        group = archive.group(place)
        for member in range(size):
            record = archive.record(number)
            number += 1
            try:
                check_version(record)
                _check_record(record)
                rows = group.rounds(member)
                for row in rows:
                    check_round(row)
                if arrays := group.beliefs.read(member):
                    clients = record.config.training.clients
                    check_beliefs(Path(BELIEFS_FILE), arrays, record.scenario.samples, clients)
                summary = record.confirmed(rows)
            except ValueError as error:
                raise ValueError(f"{record.config.place}: {error}") from None
            yield dataclasses.replace(record, summary=summary), rows, arrays


def _place(
    record: RunRecord, rows: Sequence[RoundRow], arrays: dict[str, np.ndarray], out: Path, imported: Imported
) -> None:
    """Write one run if its folder is free: run.json last, so that a run with a record is complete."""
    folder = RunFolder(out / record.config.place)
    folder.create()
    try:
        with claimed(folder.path):
            folder.sweep_parts()
            if (folder.path / RUN_FILE).exists() or folder.checkpoint.exists():
                _compare(folder, record, rows, imported)
                return
            replace_file(folder.rounds_file, rounds_text(rows))
            if arrays:
                write_beliefs(folder.path / BELIEFS_FILE, arrays)
            folder.write(record)
            imported.runs.append(folder.path)
    except Busy:
        imported.refused[folder.path] = "a process is working on it"


def _compare(folder: RunFolder, record: RunRecord, rows: Sequence[RoundRow], imported: Imported) -> None:
    """Count a run whose folder has a run already."""
    present, rounds = None, None
    with contextlib.suppress(ValueError):
        present, rounds = folder.read(), folder.read_rounds()
    if present is None or not present.done:
        imported.refused[folder.path] = "the folder has an unfinished or unreadable run"
    elif (present.config, present.scenario) == (record.config, record.scenario) and rounds == rows:
        imported.duplicates += 1
    else:
        imported.refused[folder.path] = "the folder has a run with other numbers"


def _with_origin(record: RunRecord, file: Path) -> RunRecord:
    """Return the record with the name of the file that it comes from."""
    origin = {"file": file.name, "time": now(), "provenance": record.provenance}
    if record.imported:
        origin["earlier"] = record.imported
    return dataclasses.replace(record, imported=origin)


# -- checks of others' files -------------------------------------------------------------------------
def _refuse_links(root: Path, place: Path) -> None:
    """Refuse a path below `root` any part of which is a link; `root` itself may be one."""
    for parent in (place, *place.parents):
        if parent == root:
            return
        if parent.is_symlink():
            raise BadInput(f"{parent} is a symbolic link, and runs are not imported through links; remove it")


def _check_record(record: RunRecord) -> None:
    """Refuse a record whose numbers are impossible, or whose provenance has another form."""
    from flnl_bench.results.recipe import check_facts

    check_facts(record.scenario, record.config)
    summary = record.result()
    numbers = [getattr(summary, name) for name in ("rounds", "seconds", *COSTS)]
    if min(numbers) < 0 or not 0 <= (summary.best_round or 0) < max(1, summary.rounds):
        raise ValueError("a number is below zero, or the best round is none of them")
    for metric in METRICS:
        value = getattr(summary, metric)
        if value is not None and not 0 <= value <= 100:
            raise ValueError(f"summary.{metric} is {value}, not a percentage")
    check_counts(summary.counts)
    for about in (record.provenance, *record.earlier):
        for part in (
            (about.get("libraries", {}), about.get("code", {})) if isinstance(about, dict) else [None]
        ):
            if not (isinstance(part, dict) and all(isinstance(text, str) for text in part.values())):
                raise ValueError("provenance is missing or of another type")


def check_counts(counts: Any) -> None:
    """Refuse counts that are not as rounds and summaries have them."""
    if not (isinstance(counts, dict) and isinstance(counts.get("sent"), dict)):
        raise ValueError("counts are not by name")
    names = [*COUNTS, *(name for name in STEPS if name in counts)]
    good = all(_is_count(counts.get(name)) for name in names)
    for entry in counts["sent"].values():
        numbers = [entry.get(name) for name in PARTS] if isinstance(entry, dict) else [None]
        good = good and all(map(_is_count, numbers)) and entry["units"] > 0 and entry.get("per") in PER
    if not good:
        raise ValueError("counts are not whole numbers")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def check_round(row: object) -> None:
    """Refuse a line of rounds.jsonl that lacks a number or has one of another kind."""
    if not isinstance(row, dict) or type(row.get("round")) is not int:
        raise ValueError("rounds.jsonl has a line that is not a round")
    for name in ("seconds", *COSTS):
        if not (is_number(row.get(name)) and row[name] >= 0):
            raise ValueError(f"round {row['round']}: {name} is {row.get(name)!r}")
    for name in ("accuracy", "loss", "train_loss"):
        value = row.get(name, "missing")
        if not (value is None or (is_number(value) and (value >= 0 or "loss" in name))):
            raise ValueError(f"round {row['round']}: {name} is {value!r}")
    clients = row.get("clients")
    if not (isinstance(clients, list) and all(type(client) is int for client in clients)):
        raise ValueError(f"round {row['round']}: clients are not numbers")
    check_counts(row.get("counts"))
    for name in ("method", "diagnostics"):
        _check_numbers(row.get(name, {}), f"round {row['round']}: {name}")


def _check_numbers(values: object, where: str) -> None:
    """Refuse values that are not numbers by name, or by client and name."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {values!r}")
    for name, value in values.items():
        if isinstance(value, dict):
            _check_numbers(value, f"{where}.{name}")
        elif not (value is None or is_number(value)):
            raise ValueError(f"{where}.{name} is {value!r}")
