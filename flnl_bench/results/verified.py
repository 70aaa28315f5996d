"""The verification of a run: a file next to run.json, bound to the digest of the files that were checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from flnl_bench.results.run_folder import rounds_text
from flnl_bench.results.run_record import BELIEFS_FILE, ROUNDS_FILE, RUN_FILE, RunRecord

Status = Literal["self-reported", "re-run", "bit-confirmed"]
STATUSES: tuple[Status, ...] = get_args(Status)
VERIFIED_FILE = "verified.json"


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
    status: Status = _stored(record).get("status", "self-reported")
    return status


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
        whole = content["status"] in STATUSES and all(isinstance(one, dict) for one in content["findings"])
        return content if whole and content["digest"] == digest_of(record) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
