"""`flnl-bench verify`: check a run, or the runs of a folder or an archive."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from flnl_bench.cli import options
from flnl_bench.cli.console import note, print_json, reporting, stdout, table, waiting
from flnl_bench.cli.options import option
from flnl_bench.cli.results import warn_files
from flnl_bench.cli.runs import find_run, run_argument
from flnl_bench.errors import BadInput
from flnl_bench.escaping import lines
from flnl_bench.results.run_record import RUN_FILE, RunRecord

if TYPE_CHECKING:
    from flnl_bench.verification import Verification

CHECKING = "What is checked"
_STYLES = {"ok": "green", "note": "yellow", "wrong": "bold red"}


def verify_command(
    runs: Annotated[
        str,
        run_argument(
            "A run, as for `show`; a results folder; an archive (.zip); or the word `published`",
            "RUN|DIR|ARCHIVE",
        ),
    ],
    sample: Annotated[
        int,
        option(CHECKING, "N", "Of a folder or archive: check this many runs, which a hash of it chooses."),
    ] = 3,
    rounds: Annotated[
        int | None,
        option(CHECKING, "N", "Train N rounds of each run again.", default="what five minutes allow"),
    ] = None,
    data_dir: options.DataDir = None,
    plugin: options.PluginFiles = None,
    as_json: options.Json = False,
) -> None:
    """Check runs: summary, scenario, code, control, and rounds that are trained again and compared by bits.

    The outcome is stored next to run.json: self-reported, re-run or bit-confirmed. Exits with 1 if a run
    cannot be right, or cannot be read.
    """
    options.use_plugins(plugin)
    for name, value in (("--sample", sample), ("--rounds", rounds)):
        if value is not None and value < 1:
            raise BadInput(f"{name} is {value}, but must be a whole number from 1")
    with waiting("loading torch"):
        from flnl_bench.verification import save_verification, verify

    outcomes: list[Verification] = []
    with _records(runs) as (every, problems, lasting):
        warn_files(problems, "not checked: ")
        chosen = every if len(every) == 1 else _sampled(every, sample)
        for number, record in enumerate(chosen, 1):
            title = f"{number} of {len(chosen)}: {record.config.title}: rounds trained again"
            progress = functools.partial(reporting(), title)
            peers = _peers(record, every)
            outcomes.append(verify(record, rounds=rounds, data_dir=data_dir, peers=peers, progress=progress))
            if lasting:
                save_verification(outcomes[-1])
            if not as_json:
                _print(outcomes[-1])
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    if as_json:
        unread = {str(path): why for path, why in problems.items()}
        found = [_as_object(outcome) for outcome in outcomes]
        print_json({"ok": not wrong and not problems, "runs": found, "not_checked": unread})
    if len(every) > len(outcomes):
        note(f"{len(outcomes)} of {len(every)} runs were checked; --sample chooses how many")
    if wrong:
        note(f"{len(wrong)} of {len(outcomes)} runs cannot be right")
    if wrong or problems:
        raise typer.Exit(1)


@contextmanager
def _records(name: str) -> Iterator[tuple[list[RunRecord], Mapping[Path, str], bool]]:
    """Yield the finished runs of a name, why files cannot be read, and whether the folders last."""
    from flnl_bench.results.importing import import_runs
    from flnl_bench.results.published import published_runs
    from flnl_bench.results.run_folder import read_runs

    path = Path(name)
    problems: Mapping[Path, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        if name == "published":
            (records, problems), lasting = published_runs(), False
        elif path.is_file() and path.name != RUN_FILE:
            if not zipfile.is_zipfile(path):
                raise BadInput(f"{path} is not an archive (.zip) of `results export`")
            import_runs(path, Path(folder))
            records, lasting = read_runs(Path(folder))[0], False
        elif path.is_dir() and not (path / RUN_FILE).is_file():
            (records, problems), lasting = read_runs(path), True
        else:
            records, lasting = [find_run(name)], True
        done = [record for record in records if record.done]
        if not done and not problems:
            raise BadInput(f"there is no finished run in {name}")
        yield done, problems, lasting


def _sampled(records: Sequence[RunRecord], count: int) -> list[RunRecord]:
    """Return some runs, chosen by a hash of each: the same ones for everybody who checks them."""

    def order(record: RunRecord) -> str:
        text = f"{record.config.hash} {record.last10} {record.best}"
        return hashlib.blake2b(text.encode()).hexdigest()

    return sorted(records, key=order)[:count]


def _peers(record: RunRecord, others: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs among which the control is looked for: the given ones, or those next to the run."""
    if len(others) > 1:
        return list(others)
    from flnl_bench.results.run_folder import read_runs

    setting = (
        record.folder.absolute().parent.parent
    )  # DATASET/PARTITION/SETTING/METHOD/RUN; a variant is one deeper
    if "/" in record.config.method:
        setting = setting.parent
    return read_runs(setting)[0] if setting.is_dir() else []


def _print(outcome: Verification) -> None:
    console = stdout()
    console.print(outcome.record.config.title, style="bold")
    rows = table("check", "", "result")
    for finding in outcome.findings:
        rows.add_row(finding.check, Text(finding.state, _STYLES[finding.state]), lines(finding.text))
    console.print(rows)
    console.print("cannot be right" if outcome.wrong else str(outcome.status), style="bold")


def _as_object(outcome: Verification) -> dict[str, object]:
    findings = [dataclasses.asdict(finding) for finding in outcome.findings]
    names = {**outcome.record.config.names, "run_dir": str(outcome.record.folder)}
    status = outcome.status
    shown = {"status": str(status), "rounds": status.rounds, "of": status.of}
    return {**names, **shown, "findings": findings}
