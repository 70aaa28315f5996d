"""Finished runs as one file that can be sent, and back into a results folder."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import flnl_bench
from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.files import json_text
from flnl_bench.leaderboards.runs import Found, parse, read_runs
from flnl_bench.recorder.claim import Busy, claimed
from flnl_bench.recorder.record import RunFolder, check_record, read_record, run_folder

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


def export(folder: Path, file: Path) -> Exported:
    """Write all finished runs below a folder into a zip file."""
    found = read_runs(folder)
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


def _write(path: Path, found: Found, done: Exported) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        written: dict[Path, Path] = {}
        for run in sorted(found.runs, key=lambda run: run.ended, reverse=True):
            record, rows = read_record(run.path / "run.json"), RunFolder(run.path).read_rounds()
            if not whole(record, rows):
                done.left_out[run.path] = "rounds.jsonl does not hold all rounds"
                continue
            place = home(Path(), record, run.path.name)
            if not is_home(Path(), place):
                done.left_out[run.path] = "its folder does not have the name of a run"
                continue
            if place in written:
                done.left_out[run.path] = f"the same run is exported from {written[place]}"
                continue
            written[place] = run.path
            _add(archive, f"{place.as_posix()}/run.json", json_text(record, indent=2) + "\n")
            _add(archive, f"{place.as_posix()}/rounds.jsonl", "".join(json_text(row) + "\n" for row in rows))
            done.runs += 1
        about = {"format": FORMAT, "version": VERSION, "exported": now(), "runs": done.runs}
        _add(archive, MANIFEST, json_text({**about, "flnl_bench": flnl_bench.__version__}, indent=2) + "\n")


def whole(record: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether the rounds are those of a finished run's record."""
    try:
        run = parse(record, Path())
        return [row["round"] for row in rows] == list(range(run.training["rounds"]))
    except (ValueError, KeyError, TypeError):
        return False


def home(out: Path, record: dict[str, Any], name: str) -> Path:
    """Where a run lives below `out`; the last part keeps the hash of the version that made it."""
    known = {f.name for f in dataclasses.fields(RunConfig)}
    config = RunConfig(**{name: value for name, value in record["config"].items() if name in known})
    return run_folder(out, config).parent / name


def is_home(out: Path, place: Path) -> bool:
    """Whether a run may live there: below `out`, in a folder that is called as runs are."""
    inside = place.is_relative_to(out) and ".." not in place.relative_to(out).parts
    return inside and _NAME.fullmatch(place.name) is not None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    info = zipfile.ZipInfo(name, _ANY_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, text)


Record = dict[str, Any]

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, TypeError, RuntimeError)


@dataclass
class Imported:
    """What became of the runs of a file."""

    runs: list[Path] = field(default_factory=list)
    there: int = 0  # the same run with the same rounds is there already
    kept: dict[Path, str] = field(default_factory=dict)  # something else is there, and stays


def load(file: Path, out: Path) -> Imported:
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


def _members(
    archive: zipfile.ZipFile, out: Path
) -> Iterator[tuple[Path, dict[str, Any], list[dict[str, Any]]]]:
    """Each run of the file: where it belongs, its record and its rounds."""
    for name in archive.namelist():
        path = PurePosixPath(name)
        if path.name != "run.json":
            continue
        record = check_record(archive.read(name))
        lines = archive.read(f"{path.parent}/rounds.jsonl").decode().splitlines()
        rows = [json.loads(line) for line in lines]
        if record["status"] != "done" or not whole(record, rows):
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


def _put(folder: RunFolder, record: Record, rows: list[Record], file: str, done: Imported) -> None:
    """Write one run if its place is free: the rounds first, so that a run with a record is whole."""
    if (folder.path / "run.json").exists() or (folder.path / "checkpoint").exists():
        there = folder.read()
        if there is None or there.get("status") != "done":
            done.kept[folder.path] = "an unfinished or unreadable run is there"
        elif _same(there, record) and _accuracies(folder.read_rounds()) == _accuracies(rows):
            done.there += 1
        else:
            done.kept[folder.path] = "a run with other numbers is there"
        return
    folder.rewrite_rounds(rows)
    origin = {"file": file, "time": now(), "provenance": record["provenance"]}
    if earlier := record.get("imported"):
        origin["earlier"] = earlier
    folder.write({**record, "imported": origin})
    done.runs.append(folder.path)


def _same(there: Record, record: Record) -> bool:
    return there.get("config") == record["config"] and there.get("scenario") == record["scenario"]


def _accuracies(rows: list[Record]) -> list[object]:
    return [row.get("accuracy") for row in rows]
