"""Archives of finished runs: export, import from others, and the runs that this package ships.

`import_runs` takes files of others: it checks the whole archive before it writes anything.
`published_folder` unpacks the archives of this package, which are trusted like its code.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO

import flnl_bench
from flnl_bench.atomic_files import json_text, replace_file, replacing, sweep_parts
from flnl_bench.config import NUMBERS_VERSION
from flnl_bench.engine.ledger import PARTS, PER
from flnl_bench.errors import BadInput
from flnl_bench.input_files import MB, check_unpacked, is_number, parse_json
from flnl_bench.results.beliefs import check_beliefs_file
from flnl_bench.results.lock import Busy, claimed
from flnl_bench.results.run_folder import RunFolder, read_runs, rounds_text
from flnl_bench.results.run_record import (
    BELIEFS_FILE,
    COSTS,
    COUNTS,
    METRICS,
    ROUNDS_FILE,
    RUN_FILE,
    RoundRow,
    RunRecord,
    now,
    parse_record,
    read_rounds,
)

ARCHIVE_FORMAT, ARCHIVE_VERSION = "flnl-bench results", 2
MANIFEST = "manifest.json"
SIZE_LIMITS = {RUN_FILE: 16 * MB, ROUNDS_FILE: 256 * MB, BELIEFS_FILE: 256 * MB}  # bytes, by file of a run
_ANY_TIME = (1980, 1, 1, 0, 0, 0)  # so that the same runs give the same bytes

PACKAGE = Path(flnl_bench.__file__).parent


# -- export ------------------------------------------------------------------------------------------
@dataclass
class Exported:
    """Counts of an export."""

    runs: int = 0
    left_out: dict[Path, str] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)  # runs by status


def export_runs(folder: Path, file: Path) -> Exported:
    """Write all finished runs below a folder into a zip file."""
    records, problems = read_runs(folder)
    unfinished = Counter(record.status for record in records if not record.done)
    exported = Exported(left_out=dict(problems), unfinished=unfinished)
    with replacing(file) as partial:
        _write(partial, [record for record in records if record.done], exported)
        if not exported.runs:
            reasons = [f"{path}: {why}" for path, why in exported.left_out.items()]
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            why = f"; {reasons[0]}{more}" if reasons else ""
            raise BadInput(f"there is no finished run below {folder} to export{why}")
    return exported


def _write(path: Path, records: Iterable[RunRecord], exported: Exported) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        written: dict[PurePath, Path] = {}
        for record in sorted(records, key=lambda record: record.ended or "", reverse=True):
            place, run = record.config.place, record.folder
            try:
                _check_version(record)
                rows = read_rounds(run)
                summary = record.confirmed(rows)
                if beliefs := (run / BELIEFS_FILE).read_bytes() if (run / BELIEFS_FILE).exists() else b"":
                    clients = record.config.training.clients
                    check_beliefs_file(run / BELIEFS_FILE, beliefs, record.scenario.samples, clients)
            except ValueError as error:
                exported.left_out[run] = str(error)
                continue
            if place in written:
                exported.left_out[run] = f"the same run is exported from {written[place]}"
                continue
            written[place] = run
            _add(archive, place / RUN_FILE, dataclasses.replace(record, summary=summary).text())
            _add(archive, place / ROUNDS_FILE, rounds_text(rows))
            if beliefs:
                _add(archive, place / BELIEFS_FILE, beliefs)
            exported.runs += 1
        about = {"format": ARCHIVE_FORMAT, "version": ARCHIVE_VERSION, "runs": exported.runs}
        about["flnl_bench"] = flnl_bench.__version__
        _add(archive, PurePath(MANIFEST), json_text(about, indent=2) + "\n")


def _add(archive: zipfile.ZipFile, name: PurePath, content: str | bytes) -> None:
    info = zipfile.ZipInfo(name.as_posix(), _ANY_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


# -- import ------------------------------------------------------------------------------------------
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, MemoryError, OverflowError),
    *(ValueError, KeyError, TypeError, AttributeError, RuntimeError),
)


@dataclass
class Imported:
    """Counts of an import."""

    runs: list[Path] = field(default_factory=list)
    duplicates: int = 0  # runs that are in the folder already, with the same rounds
    refused: dict[Path, str] = field(default_factory=dict)  # folders that hold another run, which stays


def import_runs(file: Path, out: Path) -> Imported:
    """Add the runs of an exported file to a results folder; the whole file is checked first."""
    with _opened(file) as packed, zipfile.ZipFile(packed) as archive:
        check_unpacked(archive, os.fstat(packed.fileno()).st_size)
        names = frozenset(archive.namelist())
        _check_archive(archive, names)
        records = [_checked_record(archive, names, name) for name in sorted(names) if name.endswith(RUN_FILE)]
        if len({record.config.place for record in records}) < len(records):
            raise ValueError("it has a run twice")
        for record in records:
            _refuse_links(out, out / record.config.place)
            if data := _beliefs(archive, names, record.config.place):
                where = file / record.config.place / BELIEFS_FILE
                check_beliefs_file(where, data, record.scenario.samples, record.config.training.clients)
        imported = Imported()
        for record in records:
            _place(record, archive, names, file, out, imported)
        return imported


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open an archive; any fault of it is one line."""
    try:
        packed = open(file, "rb")  # noqa: SIM115 (an error of the output folder is no fault of the archive)
    except FileNotFoundError:
        raise BadInput(f"there is no file {file}") from None
    except IsADirectoryError:
        raise BadInput(f"{file} is a folder, not a file of `flnl-bench results export`") from None
    try:
        with packed:
            yield packed
    except _BROKEN as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{file} is not a whole file of `flnl-bench results export` ({error})") from None


def _check_archive(archive: zipfile.ZipFile, names: frozenset[str]) -> None:
    """Raise a ValueError if a byte is wrong, or the file is not an export."""
    if MANIFEST not in names:
        raise ValueError(f"it has no {MANIFEST}")
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        limit = MB if member.filename == MANIFEST else SIZE_LIMITS.get(path.name, -1)
        if member.file_size > limit or stat.S_ISLNK(member.external_attr >> 16):
            raise ValueError(f"{member.filename} is not a file of a run, or too large for one")
        if str(path.with_name(RUN_FILE)) not in names and member.filename != MANIFEST:
            raise ValueError(f"{member.filename} belongs to no run")
    if damaged := archive.testzip():
        raise ValueError(f"{damaged} is damaged")
    about = parse_json(archive.read(MANIFEST))
    if not isinstance(about, dict):
        raise ValueError(f"its {MANIFEST} is not of flnl-bench")
    name, version = about.get("format"), about.get("version")
    if (name, version) != (ARCHIVE_FORMAT, ARCHIVE_VERSION):
        raise ValueError(f"its format is {name} {version}, not {ARCHIVE_FORMAT} {ARCHIVE_VERSION}")


def _checked_record(archive: zipfile.ZipFile, names: frozenset[str], name: str) -> RunRecord:
    """Check the record and rounds of a run in an archive; return the record with the computed summary."""
    folder = PurePosixPath(name).parent
    try:
        record = parse_record(parse_json(archive.read(name)))
        _check_version(record)
        _check_record(record)
        if f"{folder}/{ROUNDS_FILE}" not in names:
            raise ValueError(f"it has no {ROUNDS_FILE}")
        if folder != PurePosixPath(record.config.place):
            raise ValueError(f"a run of this configuration belongs to {record.config.place}")
        rows = _rounds(archive, folder)
        for row in rows:
            check_round(row)
        return dataclasses.replace(record, summary=record.confirmed(rows))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def _rounds(archive: zipfile.ZipFile, folder: PurePath) -> list[RoundRow]:
    text = archive.read(f"{folder.as_posix()}/{ROUNDS_FILE}").decode()
    return [parse_json(line) for line in text.split("\n") if line]


def _place(
    record: RunRecord,
    archive: zipfile.ZipFile,
    names: frozenset[str],
    file: Path,
    out: Path,
    imported: Imported,
) -> None:
    """Write one run if its folder is free: run.json last, so that a run with a record is complete."""
    place = record.config.place
    folder, rows = RunFolder(out / place), _rounds(archive, place)
    folder.create()
    try:
        with claimed(folder.path):
            folder.sweep_parts()
            if (folder.path / RUN_FILE).exists() or folder.checkpoint.exists():
                _compare(folder, record, rows, imported)
                return
            replace_file(folder.rounds_file, rounds_text(rows))
            if data := _beliefs(archive, names, place):
                replace_file(folder.path / BELIEFS_FILE, data)
            folder.write(_with_origin(record, file))
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


def _beliefs(archive: zipfile.ZipFile, names: frozenset[str], place: PurePath) -> bytes:
    """Read the beliefs of a run; empty if there is no such file."""
    name = (place / BELIEFS_FILE).as_posix()
    return archive.read(name) if name in names else b""


def _with_origin(record: RunRecord, file: Path) -> RunRecord:
    """Return the record with the name of the file that it comes from."""
    origin = {"file": file.name, "time": now(), "provenance": record.provenance}
    if record.imported:
        origin["earlier"] = record.imported
    return dataclasses.replace(record, imported=origin)


def _check_version(record: RunRecord) -> None:
    """Refuse a run of another NUMBERS_VERSION: this package gives its folder another name."""
    if record.numbers != NUMBERS_VERSION:
        raise ValueError(f"its numbers are of version {record.numbers}, not {NUMBERS_VERSION}")


# -- checks of strangers' files ----------------------------------------------------------------------
def _refuse_links(root: Path, place: Path) -> None:
    """Refuse a path below `root` any part of which is a link; `root` itself may be one."""
    for parent in (place, *place.parents):
        if parent == root:
            return
        if parent.is_symlink():
            raise BadInput(f"{parent} is a symbolic link, and runs are not imported through links; remove it")


def _check_record(record: RunRecord) -> None:
    """Refuse a record whose numbers are impossible, or whose provenance has another form."""
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
    good = all(_is_count(counts.get(name)) for name in COUNTS)
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


# -- the runs that this package ships ----------------------------------------------------------------
def archives() -> list[Path]:
    """List the archives of published runs: in the installed package, or in results/ of the sources."""
    return sorted((PACKAGE / "published").glob("*.zip")) or sorted(PACKAGE.parent.glob("results/*.zip"))


def published_record(own: RunRecord) -> RunRecord | None:
    """Return the published run of the same configuration and scenario; None for an imported run."""
    if own.imported:
        return None
    for file in archives():
        try:
            with zipfile.ZipFile(file) as archive:
                name = (own.config.place / RUN_FILE).as_posix()
                record = parse_record(parse_json(archive.read(name)))
            record.result()
        except Exception:  # a damaged archive must not hide the result of a run
            continue
        if record.identity == own.identity:
            return record
    return None


def published_runs() -> tuple[list[RunRecord], Mapping[Path, str]]:
    """Return the published runs, and why files could not be read."""
    records, problems = read_runs(published_folder())
    return [dataclasses.replace(record, published=True) for record in records], problems


def published_folder() -> Path:
    """Return a folder with all published runs; each version of them is unpacked once."""
    import platformdirs

    files = tuple(archives())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    try:
        return _unpacked(files, Path(platformdirs.user_cache_dir("flnl-bench")) / "published" / digest)
    except OSError:  # a home that cannot be written to
        return _for_this_process(files)


def _unpacked(files: Sequence[Path], folder: Path) -> Path:
    """Unpack the files into a folder, which exists complete or not at all."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        sweep_parts(folder.parent)
        partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        try:
            partial.mkdir()
            for file in files:
                _unpack(file, partial)
            partial.rename(folder)
        except OSError:
            if not folder.exists():  # another process was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _unpack(file: Path, out: Path) -> None:
    """Unpack an archive of this package; nobody else may use `out`."""
    with _opened(file) as packed, zipfile.ZipFile(packed) as archive:
        names = [name for name in archive.namelist() if name != MANIFEST]
        archive.extractall(out, names)
        for path in (out / name for name in names if name.endswith(RUN_FILE)):
            record = parse_record(parse_json(path.read_bytes()))
            path.write_text(_with_origin(record, file).text(), encoding="utf-8")


@functools.cache
def _for_this_process(files: tuple[Path, ...]) -> Path:
    """Unpack into a temporary folder: other users could write to a lasting one."""
    folder = Path(tempfile.mkdtemp(prefix="flnl-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file in files:
        _unpack(file, folder)
    return folder
