"""Finished runs as one file that can be sent, and back into a results folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO

import flnl_bench
from flnl_bench.atomic_files import (
    MB,
    check_unpacked,
    json_text,
    open_file,
    parse_json,
    read_file,
    refuse_links,
    replace_file,
    replacing,
)
from flnl_bench.errors import BadInput
from flnl_bench.results.beliefs import check_beliefs
from flnl_bench.results.lock import Busy, claimed
from flnl_bench.results.run_folder import (
    Records,
    RunFolder,
    parse_rounds,
    read_records,
    rounds_text,
)
from flnl_bench.results.run_record import Row, RunRecord, now, parse_record

FORMAT, VERSION = "flnl-bench results", 1
MANIFEST = "manifest.json"
BELIEFS = "beliefs.npz"
MEMBERS = {"run.json": 16 * MB, "rounds.jsonl": 256 * MB, BELIEFS: 256 * MB}  # a run's files and their limits
_ANY_TIME = (1980, 1, 1, 0, 0, 0)  # so that the same runs give the same bytes


@dataclass
class Exported:
    """What went into the file, and what did not."""

    runs: int = 0
    left_out: dict[Path, str] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)  # how many of each status


def export_runs(folder: Path, file: Path) -> Exported:
    """Write all finished runs below a folder into a zip file."""
    found = read_records(folder)
    done = Exported(left_out=dict(found.problems), unfinished=Counter(found.unfinished.values()))
    with replacing(file) as partial:
        _write(partial, found, done)
        if not done.runs and done.left_out:
            (path, why), more = next(iter(done.left_out.items())), len(done.left_out) - 1
            others = f" (and {more} more)" if more else ""
            raise BadInput(f"no run below {folder} can be exported: {path}: {why}{others}")
        if not done.runs:
            raise BadInput(f"there is no finished run below {folder} to export")
    return done


def _write(path: Path, found: Records, done: Exported) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        written: dict[PurePath, Path] = {}
        for run, record in sorted(found.done.items(), key=lambda item: item[1].ended or "", reverse=True):
            try:
                rows = RunFolder(run).read_rounds()
                summary, place = record.confirmed(rows), home(record, run.name)
            except ValueError as error:
                done.left_out[run] = str(error)
                continue
            if place in written:
                done.left_out[run] = f"the same run is exported from {written[place]}"
                continue
            written[place] = run
            whole = dataclasses.replace(record, summary=summary)
            _add(archive, f"{place.as_posix()}/run.json", whole.text())
            _add(archive, f"{place.as_posix()}/rounds.jsonl", rounds_text(rows))
            if (run / BELIEFS).exists():
                _add(archive, f"{place.as_posix()}/{BELIEFS}", read_file(run / BELIEFS))
            done.runs += 1
        about = {"format": FORMAT, "version": VERSION, "runs": done.runs}
        _add(archive, MANIFEST, json_text({**about, "flnl_bench": flnl_bench.__version__}, indent=2) + "\n")


def home(record: RunRecord, name: str) -> PurePath:
    """Where a run belongs in a results folder, if its folder has a name that its configuration gives."""
    config = record.config
    start, dash, digits = name.rpartition("-")
    if start + dash != f"{config.preset}-s{config.seed}-" or digits not in config.hashes(record.numbers):
        raise ValueError("its folder does not have the name that its configuration gives")
    return config.place.with_name(name)


def _add(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    info = zipfile.ZipInfo(name, _ANY_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, MemoryError, OverflowError),
    *(ValueError, KeyError, TypeError, AttributeError, RuntimeError),
)


@dataclass
class Imported:
    """What became of the runs of a file."""

    runs: list[Path] = field(default_factory=list)
    there: int = 0  # the same run with the same rounds is there already
    kept: dict[Path, str] = field(default_factory=dict)  # something else is there, and stays


def import_runs(file: Path, out: Path) -> Imported:
    """Put the runs of an exported file where runs live; the file is checked as a whole first."""
    with _opened(file) as packed, zipfile.ZipFile(packed) as archive:
        check_unpacked(archive, os.fstat(packed.fileno()).st_size)
        _check(archive)
        members = list(_members(archive))
        if len({member.place for member in members}) < len(members):
            raise ValueError("a run is there twice")
        for member in members:
            refuse_links(out, out / member.place)
            RunFolder(out / member.place).check()
        for member in members:
            if data := _beliefs(archive, member.place):
                where, record = file / member.place / BELIEFS, member.record
                check_beliefs(where, data, record.scenario.samples, record.config.training.clients)
        return _place(members, archive, file, out)


def unpack_runs(file: Path, out: Path) -> None:
    """The runs of a file that comes with this program and is trusted like it; nobody else may use `out`."""
    with _opened(file) as packed, zipfile.ZipFile(packed) as archive:
        names = [name for name in archive.namelist() if name != MANIFEST]
        archive.extractall(out, names)
        for path in (out / name for name in names if name.endswith("/run.json")):
            path.write_text(_imported(parse_record(path.read_bytes()), file).text(), encoding="utf-8")


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """The file of an export; what is wrong with it is said in one line."""
    try:
        with open_file(file, follow=True) as packed:
            yield packed
    except FileNotFoundError:
        raise BadInput(f"there is no file {file}") from None
    except _BROKEN as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{file} is not a whole file of `flnl-bench results export` ({error})") from None


def _check(archive: zipfile.ZipFile) -> None:
    """A ValueError if a byte is wrong, or the file is not one of ours."""
    if MANIFEST not in archive.namelist():
        raise ValueError(f"it has no {MANIFEST}")
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        limit = MB if member.filename == MANIFEST else MEMBERS.get(path.name, -1)
        if member.file_size > limit or stat.S_ISLNK(member.external_attr >> 16):
            raise ValueError(f"{member.filename} is not a file of a run, or too large for one")
        if str(path.with_name("run.json")) not in archive.namelist() and member.filename != MANIFEST:
            raise ValueError(f"{member.filename} belongs to no run")
    if damaged := archive.testzip():
        raise ValueError(f"{damaged} is damaged")
    about = parse_json(archive.read(MANIFEST))
    if not isinstance(about, dict):
        raise ValueError(f"its {MANIFEST} is not ours")
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise ValueError(
            f"its format is {about.get('format')} {about.get('version')}, not {FORMAT} {VERSION}"
        )


@dataclass
class Member:
    """A run of the file."""

    place: PurePath  # where it belongs
    record: RunRecord  # with a summary that is made anew
    rounds: str  # as they are written: parsed they would take much more memory
    accuracies: list[object]


def _members(archive: zipfile.ZipFile) -> Iterator[Member]:
    """Each run of the file."""
    for name in archive.namelist():
        path = PurePosixPath(name)
        if path.name != "run.json":
            continue
        try:
            record = parse_record(archive.read(name))
            if (rounds := f"{path.parent}/rounds.jsonl") not in archive.namelist():
                raise ValueError("it has no rounds.jsonl")
            rows = parse_rounds(archive.read(rounds).decode())
            place = home(record, path.parent.name)
            if path.parent != PurePosixPath(place):
                raise ValueError(f"a run of this configuration belongs to {place}")
            record = dataclasses.replace(record, summary=record.confirmed(rows))
            yield Member(place, record, rounds_text(rows), _accuracies(rows))
        except ValueError as error:
            raise ValueError(f"{path.parent}: {error}") from None


def _place(members: Iterable[Member], archive: zipfile.ZipFile, file: Path, out: Path) -> Imported:
    done = Imported()
    for member in members:
        folder = RunFolder(out / member.place)
        folder.create()
        try:
            with claimed(folder.path):
                folder.sweep_parts()
                if _put(folder, member, file, done) and (data := _beliefs(archive, member.place)):
                    replace_file(folder.path / BELIEFS, data)
        except Busy:
            done.kept[folder.path] = "a process is working on it"
    return done


def _beliefs(archive: zipfile.ZipFile, place: PurePath) -> bytes:
    """What a run's method believed; empty if there is no such file."""
    name = f"{place.as_posix()}/{BELIEFS}"
    return archive.read(name) if name in archive.namelist() else b""


def _put(folder: RunFolder, member: Member, file: Path, done: Imported) -> bool:
    """Write one run if its place is free: the rounds first, so that a run with a record is whole."""
    record = member.record
    if (folder.path / "run.json").exists() or (folder.path / "checkpoint").exists():
        there = folder.read()
        if there is None or there.status != "done":
            done.kept[folder.path] = "an unfinished or unreadable run is there"
        elif _same(there, record) and _accuracies(_rounds_of(folder)) == member.accuracies:
            done.there += 1
        else:
            done.kept[folder.path] = "a run with other numbers is there"
        return False
    replace_file(folder.rounds_file, member.rounds)
    folder.write(_imported(record, file))
    done.runs.append(folder.path)
    return True


def _imported(record: RunRecord, file: Path) -> RunRecord:
    """The record, which says where it comes from."""
    origin = {"file": file.name, "time": now(), "provenance": record.provenance}
    if record.imported:
        origin["earlier"] = record.imported
    return dataclasses.replace(record, imported=origin)


def _same(there: RunRecord, record: RunRecord) -> bool:
    return (there.config, there.scenario) == (record.config, record.scenario)


def _accuracies(rows: list[Row]) -> list[object]:
    return [row["accuracy"] for row in rows]


def _rounds_of(folder: RunFolder) -> list[Row]:
    try:
        return folder.read_rounds()
    except ValueError:
        return []
