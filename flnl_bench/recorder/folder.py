"""The folder of one run (run.json, rounds.jsonl, checkpoint/, beliefs.npz), and all runs below a folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.files import json_text, replace_file, write_through
from flnl_bench.recorder.record import Row, RunRecord, read_record

TAIL = 1 << 16  # bytes of rounds.jsonl that hold its last line


def run_folder(out: Path, config: RunConfig) -> Path:
    """Where a run lives; the hash keeps apart whatever gives other numbers."""
    dataset = config.dataset.replace(":", "-").replace("/", "_")
    name = f"{config.preset}-s{config.seed}-{config.hash}"
    return out / dataset / config.partition / config.setting.replace(":", "_") / config.method / name


class RunFolder:
    """Reads and writes the files of one run; every file is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rounds_file(self) -> Path:
        """One JSON object a line, one line a round."""
        return self.path / "rounds.jsonl"

    def create(self) -> None:
        """Make the folder, or say why that is not possible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".write-test"
            probe.touch()
            probe.unlink()
        except OSError as error:
            reason = f"{error.strerror} (choose another folder with --out)"
            raise BadInput(f"cannot write to {self.path}: {reason}") from None

    def clear(self) -> None:
        """Remove the files of an earlier run."""
        for name in ("checkpoint", "trackers"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("run.json", "rounds.jsonl", "beliefs.npz", "best.safetensors", "final.safetensors"):
            (self.path / name).unlink(missing_ok=True)

    def read(self) -> RunRecord | None:
        """The record, or None if there is none, or a torn, foreign or old file in its place."""
        with contextlib.suppress(ValueError):
            return read_record(self.path / "run.json")
        return None

    def write(self, record: RunRecord) -> None:
        """Replace run.json."""
        replace_file(self.path / "run.json", record.text())

    def rewrite_rounds(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Make rounds.jsonl hold exactly these rounds: repairs a torn line, drops an unfinished round."""
        replace_file(self.rounds_file, rounds_text(rounds))

    def append_round(self, row: Mapping[str, Any]) -> None:
        """Add one line and have it on the disk before going on."""
        write_through(self.rounds_file, rounds_text([row]), "ab")

    def read_rounds(self) -> list[Row]:
        """The rounds that are whole, or a ValueError if the file is not ours."""
        return parse_rounds(self.rounds_file.read_text()) if self.rounds_file.exists() else []

    def last_round(self) -> Row | None:
        """The last whole line of rounds.jsonl, without reading the others."""
        try:
            with open(self.rounds_file, "rb") as file:
                file.seek(max(0, self.rounds_file.stat().st_size - TAIL))
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return None
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                if line.endswith(b"\n"):
                    return _round(json.loads(line))
        return None


def rounds_text(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Rounds as lines."""
    return "".join(json_text(row) + "\n" for row in rounds)


def parse_rounds(text: str) -> list[Row]:
    """The rounds of lines up to a torn one; a ValueError if one is not a round."""
    rows = []
    for line in text.splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            break
        rows.append(_round(values))
    return rows


def _round(values: object) -> Row:
    """A line of rounds.jsonl with the numbers that readers rely on."""
    row = values if isinstance(values, dict) else {}
    number, seconds, accuracy = (row.get(name) for name in ("round", "seconds", "accuracy"))
    if type(number) is not int or not isinstance(seconds, int | float) or "accuracy" not in row:
        raise ValueError("not a round of flnl-bench")
    if accuracy is not None and not isinstance(accuracy, int | float):
        raise ValueError(f"an accuracy is {accuracy!r}")
    return row


def flat_round(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of rounds.jsonl without nesting: the method's numbers and the diagnostics get columns."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("method", "diagnostics"):
            flat |= {f"{name}_{key}": number for key, number in value.items()}
        else:
            flat[name] = value
    return flat


# -- many --------------------------------------------------------------------------------------------
@dataclass
class Records:
    """What a results folder holds, by the folders of the runs in the order of their names."""

    done: dict[Path, RunRecord] = field(default_factory=dict)
    unfinished: dict[Path, str] = field(default_factory=dict)  # by status: running, interrupted, failed
    problems: dict[Path, str] = field(default_factory=dict)  # files that cannot be read, and why


def read_records(folder: Path) -> Records:
    """The records of all runs below a folder; what is not whole is named, not counted."""
    found = Records()
    for path in _run_files(folder, found.problems):
        try:
            record = read_record(path)
            if record.status == "done":
                record.result()
                found.done[path.parent] = record
            else:
                found.unfinished[path.parent] = record.status
        except ValueError as problem:
            found.problems[path] = str(problem)
    return found


def _run_files(folder: Path, problems: dict[Path, str]) -> Iterator[Path]:
    """Every run.json below a folder; below a run there is no other, and hidden folders are not ours."""

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = f"cannot be read ({error.strerror})"

    for place, folders, files in os.walk(folder, onerror=unreadable):
        if "run.json" in files:
            folders.clear()
            yield Path(place, "run.json")
        folders[:] = sorted(name for name in folders if not name.startswith("."))
