"""The verification of a run: a file next to run.json, bound to the digest of the files that were checked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal, get_args

from flnl_bench.results.run_record import ROUNDS_FILE, RUN_FILE

Status = Literal["self-reported", "re-run", "bit-confirmed"]
STATUSES: tuple[Status, ...] = get_args(Status)
VERIFIED_FILE = "verified.json"


def digest_of(folder: Path) -> str:
    """Return a digest of the record and the rounds of a run."""
    digest = hashlib.blake2b(digest_size=16)
    for name in (RUN_FILE, ROUNDS_FILE):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def read_status(folder: Path) -> Status:
    """Return the status of a run; self-reported without a verification of exactly these files."""
    try:
        content = json.loads((folder / VERIFIED_FILE).read_bytes())
        if content["status"] in STATUSES and content["digest"] == digest_of(folder):
            status: Status = content["status"]
            return status
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return "self-reported"
