"""The folder of one run: run.json, rounds.jsonl, checkpoint/, beliefs.npz."""

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
