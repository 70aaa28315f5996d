"""The verification of a run: a file next to run.json, bound to the digest of the files that were checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flnl_bench.results.run_folder import rounds_text
from flnl_bench.results.run_record import BELIEFS_FILE, ROUNDS_FILE, RUN_FILE, RunRecord

SELF_REPORTED, RE_RUN, CONFIRMED = STATUSES = ("self-reported", "re-run", "bit-confirmed")
VERIFIED_FILE = "verified.json"


class Status(NamedTuple):
    """The outcome of a verification: one of STATUSES, and how many rounds were repeated for it."""

    name: str = SELF_REPORTED
    rounds: int = 0
    of: int = 0

    @property
    def strength(self) -> tuple[int, int]:
        """A key to sort by: some equal rounds show less about a result than a complete repetition."""
        return STATUSES.index(self.name) if self.rounds == self.of else 0, self.rounds

    def __str__(self) -> str:
        return self.name + ("" if self.rounds == self.of else f" in {self.rounds} of {self.of} rounds")


def count_statuses(statuses: Iterable[Status]) -> dict[str, int]:
    """Return how many runs have each status, the strongest first."""
    counts: dict[str, int] = {}
    for status in sorted(statuses, key=lambda status: status.strength, reverse=True):
        counts[str(status)] = counts.get(str(status), 0) + 1
    return counts


def digest_of(record: RunRecord) -> str:
    """Return a digest of the record, the rounds and, in a folder, the beliefs of a run."""
    if record.archive:
        content = [record.text().encode(), rounds_text(record.read_rounds()).encode()]
    else:
        names = (RUN_FILE, ROUNDS_FILE, *((BELIEFS_FILE,) if record.has_beliefs else ()))
        content = [(record.folder / name).read_bytes() for name in names]
    return hashlib.blake2b(b"".join(content), digest_size=16).hexdigest()


def read_status(record: RunRecord) -> Status:
    """Return the status of a run; self-reported without a verification of exactly these files."""
    stored = _stored(record)
    return Status(stored["status"], stored["rounds"], stored["of"]) if stored else Status()


def refuted(record: RunRecord) -> bool:
    """Return whether a verification of exactly these files says that the run cannot be right."""
    return any(finding.get("state") == "wrong" for finding in _stored(record).get("findings", ()))


def _stored(record: RunRecord) -> Mapping[str, Any]:
    """Read the verification of exactly these files; nothing if there is none."""
    path = f"{record.folder}/{VERIFIED_FILE}"
    if record.archive or not os.path.exists(path):  # most runs; a Path for each would be slow
        return {}
    try:
        content = json.loads(Path(path).read_bytes())
        whole = content["status"] in STATUSES and type(content["rounds"]) is type(content["of"]) is int
        whole = whole and all(isinstance(finding, dict) for finding in content["findings"])
        return content if whole and content["digest"] == digest_of(record) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
