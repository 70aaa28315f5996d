"""Finished runs as one file that can be sent, and back into a results folder."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import flnl_bench
from flnl_bench.errors import BadInput
from flnl_bench.files import json_text
from flnl_bench.recorder.claim import Busy, claimed
from flnl_bench.recorder.folder import (
    Records,
    RunFolder,
    parse_rounds,
    read_records,
    rounds_text,
    run_folder,
)
from flnl_bench.recorder.record import Row, RunRecord, now, parse_record

FORMAT, VERSION = "flnl-bench results", 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"[\w.-]*-s\d+-[0-9a-f]{8}")
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
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        _write(partial, found, done)
        if not done.runs:
            raise BadInput(f"there is no finished run below {folder} to export")
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return done


def _write(path: Path, found: Records, done: Exported) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        written: dict[Path, Path] = {}
        for run, record in sorted(found.done.items(), key=lambda item: item[1].ended or "", reverse=True):
            rows = _rounds_of(run)
            if not is_complete(record, rows):
                done.left_out[run] = "rounds.jsonl does not hold all rounds"
                continue
            place = home(Path(), record, run.name)
            if not is_home(Path(), place):
                done.left_out[run] = "its folder does not have the name of a run"
                continue
            if place in written:
                done.left_out[run] = f"the same run is exported from {written[place]}"
                continue
            written[place] = run
            _add(archive, f"{place.as_posix()}/run.json", record.text())
            _add(archive, f"{place.as_posix()}/rounds.jsonl", rounds_text(rows))
            done.runs += 1
        about = {"format": FORMAT, "version": VERSION, "exported": now(), "runs": done.runs}
        _add(archive, MANIFEST, json_text({**about, "flnl_bench": flnl_bench.__version__}, indent=2) + "\n")


def _rounds_of(run: Path) -> list[Row]:
    try:
        return RunFolder(run).read_rounds()
    except ValueError:
        return []


def is_complete(record: RunRecord, rows: list[Row]) -> bool:
    """Whether the run is finished and these are its rounds."""
    try:
        return [row["round"] for row in rows] == list(range(record.result().rounds))
    except ValueError:
        return False


def home(out: Path, record: RunRecord, name: str) -> Path:
    """Where a run lives below `out`; the last part keeps the hash of the version that made it."""
    return run_folder(out, record.config).parent / name


def is_home(out: Path, place: Path) -> bool:
    """Whether a run may live there: below `out`, in a folder that is called as runs are."""
    inside = place.is_relative_to(out) and ".." not in place.relative_to(out).parts
    return inside and _NAME.fullmatch(place.name) is not None


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    info = zipfile.ZipInfo(name, _ANY_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, text)


_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, TypeError, RuntimeError)


@dataclass
class Imported:
    """What became of the runs of a file."""

    runs: list[Path] = field(default_factory=list)
    there: int = 0  # the same run with the same rounds is there already
    kept: dict[Path, str] = field(default_factory=dict)  # something else is there, and stays


def import_runs(file: Path, out: Path) -> Imported:
    """Put the runs of an exported file where runs live; the file is checked as a whole first."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check(archive)
            places = [place for place, _, _ in _members(archive, out)]
            if len(set(places)) < len(places):
                raise ValueError("a run is there twice")
            return _place(archive, file, out)
    except FileNotFoundError:
        raise BadInput(f"there is no file {file}") from None
    except _BROKEN as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{file} is not a whole file of `flnl-bench results export` ({error})") from None


def _check(archive: zipfile.ZipFile) -> None:
    """A ValueError if a byte is wrong, or the file is not one of ours."""
    if damaged := archive.testzip():
        raise ValueError(f"{damaged} is damaged")
    if MANIFEST not in archive.namelist():
        raise ValueError(f"it has no {MANIFEST}")
    about = json.loads(archive.read(MANIFEST))
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise ValueError(
            f"its format is {about.get('format')} {about.get('version')}, not {FORMAT} {VERSION}"
        )


def _members(archive: zipfile.ZipFile, out: Path) -> Iterator[tuple[Path, RunRecord, list[Row]]]:
    """Each run of the file: where it belongs, its record and its rounds."""
    for name in archive.namelist():
        path = PurePosixPath(name)
        if path.name != "run.json":
            continue
        record = parse_record(archive.read(name))
        rows = parse_rounds(archive.read(f"{path.parent}/rounds.jsonl").decode())
        if not is_complete(record, rows):
            raise ValueError(f"{path.parent} is not a whole finished run")
        place = home(out, record, path.parent.name)
        if not is_home(out, place):
            raise ValueError(f"{path.parent} is not the folder of a run")
        yield place, record, rows


def _place(archive: zipfile.ZipFile, file: Path, out: Path) -> Imported:
    done = Imported()
    for place, record, rows in _members(archive, out):
        folder = RunFolder(place)
        folder.create()
        try:
            with claimed(place):
                _put(folder, record, rows, file.name, done)
        except Busy:
            done.kept[place] = "a process is working on it"
    return done


def _put(folder: RunFolder, record: RunRecord, rows: list[Row], file: str, done: Imported) -> None:
    """Write one run if its place is free: the rounds first, so that a run with a record is whole."""
    if (folder.path / "run.json").exists() or (folder.path / "checkpoint").exists():
        there = folder.read()
        if there is None or there.status != "done":
            done.kept[folder.path] = "an unfinished or unreadable run is there"
        elif _same(there, record) and _accuracies(_rounds_of(folder.path)) == _accuracies(rows):
            done.there += 1
        else:
            done.kept[folder.path] = "a run with other numbers is there"
        return
    folder.rewrite_rounds(rows)
    origin = {"file": file, "time": now(), "provenance": record.provenance}
    if record.imported:
        origin["earlier"] = record.imported
    folder.write(dataclasses.replace(record, imported=origin))
    done.runs.append(folder.path)


def _same(there: RunRecord, record: RunRecord) -> bool:
    return (there.config, there.scenario) == (record.config, record.scenario)


def _accuracies(rows: list[Row]) -> list[object]:
    return [row["accuracy"] for row in rows]
