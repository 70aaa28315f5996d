"""Finished runs as one file that can be sent: run.json and rounds of each, no checkpoints, no beliefs."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flnl_bench
from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.files import json_text
from flnl_bench.leaderboard.runs import Found, parse, read_runs
from flnl_bench.recorder.folder import RunFolder, run_folder
from flnl_bench.recorder.record import read_record

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
