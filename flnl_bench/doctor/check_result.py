"""What a check says, and how one that fails is kept from ending the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flnl_bench.errors import one_line

REPORT = "`flnl-bench doctor --json > doctor.json`, and send us that file"


@dataclass(frozen=True)
class Asked:
    """What `flnl-bench doctor` was asked to look at."""

    device: str  # cpu, cuda or mps
    out: Path
    data_dir: Path | None = None


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    state: Literal["ok", "note", "wrong"]  # note: worth knowing, but every run works
    result: str
    advice: str = ""  # what to do
    details: Mapping[str, Any] = field(default_factory=dict)  # for --json


Check = Callable[[Asked], Finding]


def isolated(check: Check, asked: Asked) -> Finding:
    """What a check finds; an error in it is a finding too."""
    try:
        return check(asked)
    except (Exception, SystemExit) as error:  # also of a plugin, of torch and of its libraries
        return Finding("wrong", one_line(error), f"if the message does not help: {REPORT}")
