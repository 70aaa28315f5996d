"""The verification of a run: a file next to run.json, bound to the digest of the files that were checked."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, get_args

from flnl_bench.results.run_folder import rounds_text
from flnl_bench.results.run_record import ROUNDS_FILE, RUN_FILE, RunRecord

Status = Literal["self-reported", "re-run", "bit-confirmed"]
STATUSES: tuple[Status, ...] = get_args(Status)
VERIFIED_FILE = "verified.json"


def digest_of(record: RunRecord) -> str:
    """Return a digest of the record and the rounds of a run."""
    if record.archive:
        content = [record.text().encode(), rounds_text(record.read_rounds()).encode()]
    else:
        content = [(record.folder / name).read_bytes() for name in (RUN_FILE, ROUNDS_FILE)]
    return hashlib.blake2b(b"".join(content), digest_size=16).hexdigest()


def read_status(record: RunRecord) -> Status:
    """Return the status of a run; self-reported without a verification of exactly these files."""
    try:
        content = json.loads((record.folder / VERIFIED_FILE).read_bytes())
        if content["status"] in STATUSES and content["digest"] == digest_of(record):
            status: Status = content["status"]
            return status
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return "self-reported"
