"""The files of one run: run.json, rounds.jsonl, checkpoint/, beliefs.npz."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.files import json_text, replace_file, write_through

SCHEMA = 1


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

    def read(self) -> dict[str, Any] | None:
        """run.json, or None if there is no whole one."""
        try:
            record = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace run.json."""
        replace_file(self.path / "run.json", json_text({"schema": SCHEMA, **record}, indent=2) + "\n")

    def rewrite_rounds(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Make rounds.jsonl hold exactly these rounds: repairs a torn line, drops an unfinished round."""
        replace_file(self.rounds_file, "".join(json_text(row) + "\n" for row in rounds))

    def append_round(self, row: Mapping[str, Any]) -> None:
        """Add one line and have it on the disk before going on."""
        write_through(self.rounds_file, json_text(row) + "\n", "ab")

    def read_rounds(self) -> list[dict[str, Any]]:
        """The rounds that are whole."""
        rows = []
        for line in self.rounds_file.read_text().splitlines() if self.rounds_file.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows


# What a record must have, and of which type.
NEEDED: dict[str, dict[str, tuple[type, ...]]] = {
    "config": {
        **dict.fromkeys(("method", "dataset", "partition", "setting", "preset", "device"), (str,)),
        "seed": (int,),
        "training": (dict,),
        "hyperparameters": (dict,),
    },
    "scenario": {"fingerprint": (str,)},
    "provenance": {"numbers": (int,)},
}


def trusted(folder: Path) -> dict[str, Any] | None:
    """The record of a run, or None if there is none, or a torn, foreign or old one in its place."""
    try:
        return read_record(folder / "run.json")
    except ValueError:
        return None


def read_record(path: Path) -> dict[str, Any]:
    """A run.json, or a ValueError that says what is wrong with it."""
    try:
        return check_record(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None


def check_record(data: bytes) -> dict[str, Any]:
    """The bytes of a run.json as a record whose parts are all there."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("torn: not whole JSON") from None
    if not isinstance(record, dict) or not isinstance(record.get("status"), str):
        raise ValueError("foreign: not a run of flnl-bench")
    if record.get("schema") != SCHEMA:
        raise ValueError(f"schema {record.get('schema')}, but this version of flnl-bench reads {SCHEMA}")
    for part, names in NEEDED.items():
        for name, kinds in names.items():
            value = record[part].get(name) if isinstance(record.get(part), dict) else None
            if type(value) not in kinds:
                raise ValueError(f"foreign: {part}.{name} is missing or of another type")
    return record


LAST = 10  # rounds in the headline mean
COSTS = ("bytes_down", "bytes_up", "forward", "backward")


def summarise(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """last10: mean test accuracy of the last ten rounds; best: the highest; and the summed costs.

    None stands for what is not known; `best_round` counts from 0, as does `diverged`, the first round
    whose test loss is not finite.
    """
    accuracies = [row["accuracy"] for row in rounds]
    tail = accuracies[-LAST:]
    known = [i for i, accuracy in enumerate(accuracies) if accuracy is not None]
    best = max(known, key=accuracies.__getitem__, default=None)
    return {
        "rounds": len(rounds),
        "last10": None if None in tail else sum(tail) / len(tail),
        "best": None if best is None else accuracies[best],
        "best_round": best,
        "final": accuracies[-1],
        "diverged": next((i for i, row in enumerate(rounds) if row.get("loss", 0.0) is None), None),
        "seconds": sum(row["seconds"] for row in rounds),
        **{name: sum(row[name] for row in rounds) for name in COSTS},
    }
