"""run.json as others read it: checked, so that a torn, foreign or old file is never taken for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flnl_bench.recorder.folder import SCHEMA

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
