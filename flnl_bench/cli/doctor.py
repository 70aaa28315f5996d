"""`flnl-bench doctor`: checks of this machine, and its speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import note, print_json, stdout, table, waiting
from flnl_bench.cli.options import DEVICES, FILES, flag, option
from flnl_bench.cli.runs import RUNS
from flnl_bench.errors import BadInput
from flnl_bench.escaping import lines

if TYPE_CHECKING:
    from flnl_bench.doctor.check_result import CheckResult

_STATE_STYLES = {"ok": "green", "note": "yellow", "wrong": "bold red"}


def doctor_command(
    device: Annotated[str, option(DEVICES, "NAME", "auto, cpu, cuda or mps.")] = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder that runs would be written to.")] = RUNS,
    quick: Annotated[
        bool, flag(FILES, "Skip speed, compiling and the round of every method.", "--quick")
    ] = False,
    tune: Annotated[
        str | None,
        option(
            DEVICES,
            "PRESET",
            "Instead of checks: which options train this preset fastest?",
            autocompletion=completion.presets,
        ),
    ] = None,
    dataset: options.DatasetName = None,
    as_json: options.Json = False,
) -> None:
    """Check this machine: versions, device, plugins, data, folders, reproducibility, speed.

    Nothing is downloaded, and nothing stays on the disk. Exits with 1 if something is wrong.
    """
    if tune is not None:
        print_timings(device, tune, dataset or "digits", as_json)
        return
    if dataset is not None:
        raise BadInput("--dataset needs --tune")
    with waiting("loading torch"):
        from flnl_bench.doctor.check_result import DoctorOptions, run_check
        from flnl_bench.doctor.checks import QUICK_CHECKS, SLOW_CHECKS
        from flnl_bench.engine.devices import choose_device

        doctor_options = DoctorOptions(choose_device(device).type, out, data_dir)
    findings: dict[str, CheckResult] = {}
    for name, check in (QUICK_CHECKS if quick else QUICK_CHECKS | SLOW_CHECKS).items():
        with waiting(f"checking: {name}"):
            findings[name] = run_check(check, doctor_options)
    wrong = [name for name, finding in findings.items() if finding.state == "wrong"]
    if as_json:
        rows = [{"check": name, **dataclasses.asdict(finding)} for name, finding in findings.items()]
        print_json({"ok": not wrong, "device": doctor_options.device, "checks": rows})
    else:
        print_table(findings)
    if wrong:
        note(f"{len(wrong)} of {len(findings)} checks failed: {', '.join(wrong)}")
        raise typer.Exit(1)


def print_timings(device: str, preset: str, dataset: str, as_json: bool) -> None:
    """Measure which options are fastest for a preset, and print them; nothing is written."""
    with waiting("timing rounds with several options"):
        from flnl_bench.data import dataset_name
        from flnl_bench.doctor.speed import tune
        from flnl_bench.engine.devices import choose_device

        kind, dataset = choose_device(device).type, dataset_name(dataset)
        timings = list(tune(kind, preset, dataset))
    sound = [timing for timing in timings if timing.speed]
    same = [timing for timing in sound if timing.same_numbers]
    fastest = {
        name: max(some, key=lambda timing: timing.speed or 0.0).options
        for name, some in (("with the same numbers", same), ("of all", sound))
    }
    if as_json:
        rows = [dataclasses.asdict(timing) for timing in timings]
        about = {"preset": preset, "dataset": dataset, "device": kind}
        print_json({**about, "timings": rows, "fastest": fastest})
        return
    shown = table("options of run", "speed", "numbers")
    for timing in timings:
        speed = f"×{timing.speed:.2f}" if timing.speed else f"failed: {timing.problem}"
        numbers = "the same" if timing.same_numbers else "other last digits, so another run"
        shown.add_row(timing.options or "none", lines(speed), numbers)
    stdout().print(shown)
    for name, given in fastest.items():
        note(f"fastest {name}, for FedAvg on {dataset} with {preset}: {given or 'no options'}")


def print_table(findings: Mapping[str, CheckResult]) -> None:
    """Print a row per check, with the advice below the result."""
    rows = table("check", "", "result → what to do")
    for column in rows.columns[:2]:
        column.no_wrap = True
    for name, finding in findings.items():
        text = lines(finding.result) + (f"\n→ {lines(finding.advice)}" if finding.advice else "")
        rows.add_row(name, Text(finding.state, _STATE_STYLES[finding.state]), text)
    stdout().print(rows)
