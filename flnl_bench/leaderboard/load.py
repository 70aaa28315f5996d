"""Runs of others, from an exported file into a results folder; nothing that is there is overwritten."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from flnl_bench.errors import BadInput
from flnl_bench.leaderboard.export import FORMAT, MANIFEST, VERSION, home, is_home, now, whole
from flnl_bench.recorder.claim import Busy, claimed
from flnl_bench.recorder.folder import RunFolder
from flnl_bench.recorder.record import check_record

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
