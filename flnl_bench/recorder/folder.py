"""The folder of one run: run.json, rounds.jsonl, checkpoint/, beliefs.npz."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput

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
            raise BadInput(f"cannot write to {self.path}: {error.strerror} (choose another folder with --out)") from None

    def read(self) -> dict[str, Any] | None:
        """run.json, or None if there is no whole one."""
        try:
            record = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace run.json."""
        text = json.dumps({"schema": SCHEMA, **record}, indent=2)
        temporary = self.path / ".run.json.tmp"
        _write(temporary, text + "\n", "w")
        os.replace(temporary, self.path / "run.json")

    def rewrite_rounds(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Make rounds.jsonl hold exactly these rounds: repairs a torn line, drops an unfinished round."""
        temporary = self.path / ".rounds.jsonl.tmp"
        _write(temporary, "".join(json.dumps(row) + "\n" for row in rounds), "w")
        os.replace(temporary, self.rounds_file)

    def append_round(self, row: Mapping[str, Any]) -> None:
        """Add one line and have it on the disk before going on."""
        _write(self.rounds_file, json.dumps(row) + "\n", "a")

    def read_rounds(self) -> list[dict[str, Any]]:
        """The rounds that are whole."""
        rows = []
        for line in self.rounds_file.read_text().splitlines() if self.rounds_file.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows


def _write(path: Path, text: str, mode: str) -> None:
    with open(path, mode, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
