"""The result of a check, and the function that runs a check and catches its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flnl_bench.errors import one_line

REPORT = "`flnl-bench doctor --json > doctor.json`, and send us that file"


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `flnl-bench doctor`."""

    device: str  # cpu, cuda or mps
    out: Path
    data_dir: Path | None = None


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    state: Literal["ok", "note", "wrong"]  # note: useful to know, but every run works
    result: str
    advice: str = ""  # what the user can do
    details: Mapping[str, Any] = field(default_factory=dict)  # for --json


DoctorCheck = Callable[[DoctorOptions], CheckResult]


def run_check(check: DoctorCheck, options: DoctorOptions) -> CheckResult:
    """Run a check; an error in it is a result too, so that the other checks run."""
    try:
        return check(options)
    except (Exception, SystemExit) as error:  # also from plugins, torch and its libraries
        return CheckResult("wrong", one_line(error), f"if the message does not help: {REPORT}")
