"""The folder of one run (run.json, rounds.jsonl, checkpoint/, beliefs.npz), and all runs below a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flnl_bench.atomic_files import (
    append,
    is_number,
    json_text,
    make_writable,
    open_file,
    parse_json,
    read_file,
    refuse_links,
    refuse_strange,
    replace_file,
    sweep_parts,
)
from flnl_bench.config import RunConfig
from flnl_bench.results.run_record import COSTS, Newer, Row, RunRecord, check_counts, read_record

TAIL = 1 << 16  # bytes of rounds.jsonl that hold its last line
RESULTS = ("run.json", "rounds.jsonl", "beliefs.npz", "best.safetensors", "final.safetensors")
FILES = (*RESULTS, ".lock", ".claim")  # what a run folder holds beside its checkpoint


def run_folder(out: Path, config: RunConfig) -> Path:
    """Where a run lives; neither there nor on the way there may be a link."""
    path = out / config.place
    refuse_links(out, path)
    return path


class RunFolder:
    """Reads and writes the files of one run; every file is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rounds_file(self) -> Path:
        """One JSON object a line, one line a round."""
        return self.path / "rounds.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The folder that a run goes on from."""
        return self.path / "checkpoint"

    def create(self) -> None:
        """Make the folder, or say why that is not possible."""
        self.check()
        make_writable(self.path)

    def check(self) -> None:
        """Refuse to write where links or other people's things are, or the run of a newer version."""
        refuse_strange(self.path, folder=True)
        for path in (self.checkpoint, self.path / "trackers"):
            refuse_strange(path, folder=True)
        for path in (*(self.path / name for name in FILES), *_entries(self.checkpoint)):
            refuse_strange(path)
        try:
            read_record(self.path / "run.json")
        except Newer as error:
            raise Newer(
                f"{self.path / 'run.json'} is of a newer flnl-bench and is left alone: {error}; "
                "update flnl-bench, or choose another folder with --out"
            ) from None
        except ValueError:
            pass  # none, or a torn or foreign one: a run may take its place

    def clear(self) -> None:
        """Remove the files of an earlier run."""
        self.check()
        self.sweep()
        shutil.rmtree(self.path / "trackers", ignore_errors=True)
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)

    def leftovers(self) -> bool:
        """Whether a finished run has more than its files: it was killed when they were complete."""
        return self.checkpoint.exists() or any(path.name not in FILES for path in self.path.glob(".*"))

    def sweep(self) -> None:
        """Remove the checkpoint, and what killed processes have left behind."""
        if self.checkpoint.exists():
            shutil.rmtree(self.checkpoint)
        self.sweep_parts()

    def sweep_parts(self) -> None:
        """Remove half-written files and claims of killed processes."""
        sweep_parts(self.path)
        for path in self.path.glob(".claim.*"):
            path.unlink(missing_ok=True)

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
        append(self.rounds_file, rounds_text([row]))

    def read_rounds(self) -> list[Row]:
        """The rounds that are whole, or a ValueError if the file is not ours."""
        try:
            return parse_rounds(read_file(self.rounds_file).decode())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ValueError(f"{self.rounds_file} cannot be read ({error.strerror})") from None

    def last_round(self) -> Row | None:
        """The last whole line of rounds.jsonl, without reading the others."""
        try:
            with open_file(self.rounds_file) as file:
                file.seek(max(0, self.rounds_file.stat().st_size - TAIL))
                lines = file.read(TAIL).splitlines(keepends=True)
        except (OSError, ValueError):
            return None
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                if line.endswith(b"\n"):
                    return _round(parse_json(line))
        return None


def _entries(folder: Path) -> list[Path]:
    """What is in a folder that may not be there."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def rounds_text(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Rounds as lines."""
    return "".join(json_text(row) + "\n" for row in rounds)


def parse_rounds(text: str) -> list[Row]:
    """The rounds of lines up to a torn one; a ValueError if one is not a round."""
    rows = []
    for line in text.split("\n"):
        if not line:
            continue
        try:
            values = parse_json(line)
        except ValueError:
            break
        rows.append(_round(values))
    return rows


def _round(values: object) -> Row:
    """A line of rounds.jsonl with the numbers that readers rely on."""
    row = values if isinstance(values, dict) else {}
    if type(row.get("round")) is not int or not {"seconds", "accuracy"} <= row.keys():
        raise ValueError("not a round of flnl-bench")
    for name in ("seconds", "accuracy", "loss", "train_loss", *COSTS):
        value = row.get(name)
        unknown = value is None and name not in ("seconds", *COSTS)
        if name in row and not (unknown or (is_number(value) and (value >= 0 or "loss" in name))):
            raise ValueError(f"round {row['round']}: {name} is {value!r}")
    clients = row.get("clients", [])
    if not (isinstance(clients, list) and all(type(client) is int for client in clients)):
        raise ValueError(f"round {row['round']}: clients are not numbers")
    check_counts(row.get("counts"))
    for name in ("method", "diagnostics"):
        _check_numbers(row.get(name, {}), f"round {row['round']}: {name}")
    return row


def _check_numbers(values: object, where: str) -> None:
    """Refuse what is not numbers by name, or by client and name."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {values!r}")
    for name, value in values.items():
        if isinstance(value, dict):
            _check_numbers(value, f"{where}.{name}")
        elif not (value is None or is_number(value)):
            raise ValueError(f"{where}.{name} is {value!r}")


def flat_round(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of rounds.jsonl without nesting: the method's numbers, diagnostics and counts get columns."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("method", "diagnostics", "counts"):
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
