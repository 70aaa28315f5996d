"""The folder of one run (run.json, rounds.jsonl, checkpoint/, beliefs.npz), and all runs below a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.atomic_files import append, json_text, make_writable, parts, replace_file, sweep_parts
from flnl_bench.errors import BadInput
from flnl_bench.results.run_record import (
    BELIEFS_FILE,
    ROUNDS_FILE,
    RUN_FILE,
    RoundRow,
    RunRecord,
    read_record,
    read_rounds,
)

KEPT = "checkpoint-"  # followed by the number of rounds in it
RESULT_FILES = (RUN_FILE, ROUNDS_FILE, BELIEFS_FILE, "best.safetensors", "final.safetensors")


class RunFolder:
    """Reads and writes the files of one run, atomically: a kill leaves the old file or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rounds_file(self) -> Path:
        """One JSON object per line, one line per round."""
        return self.path / ROUNDS_FILE

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint."""
        return self.path / "checkpoint"

    def kept(self, rounds: int) -> Path:
        """The folder of the checkpoint after so many rounds, if the run keeps it."""
        return self.path / f"{KEPT}{rounds}"

    def all_kept(self) -> list[int]:
        """Return the numbers of rounds after which a checkpoint is kept."""
        numbers = [path.name.removeprefix(KEPT) for path in self.path.glob(f"{KEPT}*")]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def create(self) -> None:
        """Create the folder, or raise an error with the reason."""
        make_writable(self.path)

    def clear(self) -> None:
        """Remove the files of an earlier run."""
        self.sweep()
        for folder in (self.path / "trackers", *map(self.kept, self.all_kept())):
            shutil.rmtree(folder, ignore_errors=True)
        for name in RESULT_FILES:
            (self.path / name).unlink(missing_ok=True)

    def leftovers(self) -> bool:
        """Return whether a checkpoint or partial files are left, as after a kill at the end of a run."""
        return self.checkpoint.exists() or any(parts(self.path))

    def sweep(self) -> None:
        """Remove the checkpoint and the partial files of killed processes."""
        if self.checkpoint.exists():
            shutil.rmtree(self.checkpoint)
        self.sweep_parts()

    def sweep_parts(self) -> None:
        """Remove partial files and claims of killed processes."""
        sweep_parts(self.path)
        for path in self.path.glob(".claim.*"):
            path.unlink(missing_ok=True)

    def read(self) -> RunRecord | None:
        """Read the record; None if there is none. An incomplete or foreign file is an error."""
        try:
            return read_record(self.path)
        except ValueError as problem:
            if not (self.path / RUN_FILE).exists():
                return None
            raise BadInput(f"{self.path / RUN_FILE}: {problem}; --fresh starts the run again") from None

    def write(self, record: RunRecord) -> None:
        """Replace run.json."""
        replace_file(self.path / RUN_FILE, record.text())

    def rewrite_rounds(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Replace the content of rounds.jsonl: removes an incomplete line and rounds without a checkpoint."""
        replace_file(self.rounds_file, rounds_text(rounds))

    def append_round(self, row: Mapping[str, Any]) -> None:
        """Add one line and flush it to the disk."""
        append(self.rounds_file, rounds_text([row]))

    def read_rounds(self) -> list[RoundRow]:
        """Read all complete lines of rounds.jsonl."""
        return read_rounds(self.path)


def rounds_text(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return rounds as lines of JSON."""
    return "".join(json_text(row) + "\n" for row in rounds)


# -- many --------------------------------------------------------------------------------------------
def read_runs(folder: Path, *, whole: bool = True) -> tuple[list[RunRecord], dict[Path, str]]:
    """Read the records of all runs below a folder, finished or not, and why other files are unreadable.

    The summary of a finished run is compared with its rounds, its numbers with those of the published run.
    Without `whole` only the mean of the last rounds is compared, which is twenty times as fast.
    """
    from flnl_bench.results.published import with_counterparts

    records: list[RunRecord] = []
    problems: dict[Path, str] = {}
    for path in _run_folders(folder, problems):
        try:
            record = read_record(path)
            if record.done and whole:
                record.confirmed(record.read_rounds())
            elif record.done:
                record.check_last10()
            records.append(record)
        except ValueError as problem:
            problems[path / RUN_FILE] = str(problem)
    return with_counterparts(records), problems


def _run_folders(folder: Path, problems: dict[Path, str]) -> Iterator[Path]:
    """Find every folder with a run.json; below a run there is no other, and hidden folders are skipped."""

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = f"cannot be read ({error.strerror})"

    for place, folders, files in os.walk(folder, onerror=unreadable):
        if RUN_FILE in files:
            folders.clear()
            yield Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
