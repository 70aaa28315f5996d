"""Verification of runs: recompute the summary, draw the scenario again, and train some rounds again.

A run that nobody checked is *self-reported*. It becomes *re-run* if a complete repetition on another kind of
machine lies within the stated band, and *bit-confirmed* if the repeated rounds are equal to the bit. The
outcome is a file next to run.json. It has the digest of the checked files, so editing them makes it invalid.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flnl_bench.atomic_files import json_text, replace_file
from flnl_bench.config import NUMBERS_VERSION
from flnl_bench.errors import BadInput, MissingData, one_line
from flnl_bench.results.run_record import RoundRow, RunRecord, now
from flnl_bench.results.verified import VERIFIED_FILE, Status, digest_of

if TYPE_CHECKING:
    from flnl_bench.running.runner import Runner

BUDGET = 300.0  # seconds of recorded training that are repeated by default
EARLY = 2  # rounds in which machines of other kinds are compared closely
NEAR_LOSS = 3e-3  # relative difference of losses in these rounds
NEAR_EARLY, NEAR_LATE, NEAR_RESULT = 4.0, 15.0, 3.0  # points of accuracy: early rounds, later ones, last-10
CONTROL = "fedavg"
NEVER_EQUAL = ("seconds",)  # of a round

RoundProgress = Callable[[int, int], None]  # rounds that are repeated, of how many


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check of a run."""

    check: str
    state: Literal["ok", "note", "wrong"]  # note: it could not be checked, or proves nothing
    text: str


@dataclass(frozen=True)
class Verification:
    """All findings about one run."""

    record: RunRecord
    status: Status
    findings: Sequence[Verdict]
    rounds: int = 0  # that were repeated, from the first one on

    @property
    def wrong(self) -> list[Verdict]:
        """The findings that speak against the run."""
        return [finding for finding in self.findings if finding.state == "wrong"]


def verify(
    record: RunRecord,
    *,
    rounds: int | None = None,
    budget: float = BUDGET,
    data_dir: Path | None = None,
    peers: Iterable[RunRecord] = (),
    progress: RoundProgress = lambda done, of: None,
) -> Verification:
    """Check a finished run.

    Args:
        record: of the run.
        rounds: to train again, from the first one on; by default all that fit into `budget`. If not all
            fit, a hash of the result decides how many.
        budget: seconds of the recorded time.
        data_dir: where the data set lies.
        peers: other runs, among which the control of the same scenario is looked for.
        progress: called after each repeated round.
    """
    rows = record.read_rounds()
    findings = [_summary(record, rows), _place(record)]
    if findings[0].state != "wrong":
        findings.append(_control(record, peers))
    runner: Runner | None = None
    try:
        runner = _runner_of(record, data_dir)
    except (BadInput, MissingData) as error:
        findings.append(Verdict("replay", "note", f"not possible here: {one_line(error)}"))
    if runner is None or any(finding.state == "wrong" for finding in findings):
        return Verification(record, "self-reported", findings)
    findings += [_scenario(record, runner), _code(record, runner), _beliefs(record, runner)]
    if any(finding.state == "wrong" for finding in findings):
        return Verification(record, "self-reported", findings)
    from flnl_bench.results.provenance import machine

    count = min(rounds, len(rows)) if rounds is not None else _affordable(record, rows, budget)
    repeated = replay(runner, count, progress)
    status, finding = _judge(record, rows, repeated, machine(runner.devices.server))
    return Verification(record, status, [*findings, finding], count)


def save_verification(verification: Verification) -> None:
    """Write the outcome next to run.json."""
    content = {
        "status": verification.status,
        "rounds": verification.rounds,
        "of": verification.record.config.training.rounds,
        "digest": digest_of(verification.record),
        "time": now(),
        "findings": [dataclasses.asdict(finding) for finding in verification.findings],
    }
    replace_file(verification.record.folder / VERIFIED_FILE, json_text(content, indent=2) + "\n")


# -- checks of the files -----------------------------------------------------------------------------
def _summary(record: RunRecord, rows: Sequence[RoundRow]) -> Verdict:
    """Recompute the summary from the rounds."""
    try:
        record.confirmed(rows)
    except ValueError as error:
        return Verdict("summary", "wrong", str(error))
    return Verdict("summary", "ok", f"equal to that of its {len(rows)} rounds")


def _place(record: RunRecord) -> Verdict:
    """Compare the folder's name with the hash of the configuration."""
    name = record.config.place.name
    if record.folder.name == name:
        return Verdict("configuration", "ok", "its hash is the name of the folder")
    return Verdict("configuration", "wrong", f"its hash gives the folder {name}, not {record.folder.name}")


def _scenario(record: RunRecord, runner: Runner) -> Verdict:
    """Compare the fingerprints of the recorded scenario and of the one drawn here."""
    theirs, ours = record.scenario.fingerprint, runner.scenario.fingerprint
    if theirs != ours:
        return Verdict(
            "scenario", "wrong", f"{theirs} in the record, {ours} drawn here: other images or labels"
        )
    return Verdict("scenario", "ok", f"{ours}, drawn again from its seed")


def _code(record: RunRecord, runner: Runner) -> Verdict:
    """Compare the digests of the code of the method and of plugins."""
    from flnl_bench.results.provenance import changed_code

    if names := changed_code(record, type(runner.method)):
        return Verdict("code", "wrong", f"made by other code of {', '.join(names)}")
    return Verdict("code", "ok", "made by the code that is installed here")


def _beliefs(record: RunRecord, runner: Runner) -> Verdict:
    """Compare the labels in beliefs.npz with those of the scenario."""
    scenario = runner.scenario
    if not record.has_beliefs:
        return Verdict("beliefs", "note", "there is no beliefs.npz")
    try:
        arrays = record.read_beliefs(("row", "given"), ("true",))
    except BadInput as error:
        return Verdict("beliefs", "wrong", str(error))
    rows = arrays["row"]
    inside = len(rows) == 0 or 0 <= rows.min() <= rows.max() < len(scenario.given)
    if not inside or (arrays["given"] != scenario.given[rows]).any():
        return Verdict("beliefs", "wrong", "beliefs.npz has other given labels than the scenario")
    if "true" in arrays and (arrays["true"] != scenario.true[rows]).any():
        return Verdict("beliefs", "wrong", "beliefs.npz has other true labels than the scenario")
    return Verdict("beliefs", "ok", "its labels are those of the scenario")


# -- the control -------------------------------------------------------------------------------------
def _control(record: RunRecord, peers: Iterable[RunRecord]) -> Verdict:
    """Check that FedAvg of the same scenario and protocol lies in its published band."""
    from flnl_bench.results.published import published_runs

    def is_control(other: RunRecord) -> bool:
        protocol = (other.config.device, other.config.training, other.numbers)
        same = protocol == (record.config.device, record.config.training, record.numbers)
        return other.done and other.config.method == CONTROL and same

    own = [
        peer
        for peer in (record, *peers)
        if is_control(peer) and peer.scenario.fingerprint == record.scenario.fingerprint
    ]
    if not own:
        return Verdict(
            "control", "note", f"no finished run of {CONTROL} on the same scenario lies next to it"
        )
    place = ("dataset", "partition", "setting")
    published = [
        float(other.result().last10 or 0.0)
        for other in published_runs()[0]
        if is_control(other) and all(other.config.names[key] == record.config.names[key] for key in place)
    ]
    band = control_band(published)
    if band is None:
        return Verdict(
            "control", "note", f"a band needs 3 published seeds of {CONTROL} here, not {len(published)}"
        )
    value = float(own[0].result().last10 or 0.0)
    outside: Literal["note", "wrong"] = "wrong" if own[0] is record else "note"  # it condemns no other run
    text = f"{CONTROL} has {value:.2f}, its published band is {band[0]:.2f} to {band[1]:.2f}"
    return Verdict("control", "ok" if band[0] <= value <= band[1] else outside, text)


def control_band(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval in which 99 % of further seeds lie; None for fewer than three seeds."""
    if len(values) < 3:
        return None
    from scipy.stats import t

    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    half = float(t.ppf(0.995, len(values) - 1)) * deviation * math.sqrt(1 + 1 / len(values))
    return mean - half, mean + half


# -- replay ------------------------------------------------------------------------------------------
def _runner_of(record: RunRecord, data_dir: Path | None) -> Runner:
    """Return a run with the recorded configuration, on a scenario that is drawn here."""
    from flnl_bench.data import load_dataset
    from flnl_bench.engine.devices import choose_devices
    from flnl_bench.methods import default_methods
    from flnl_bench.running.options import RunOptions
    from flnl_bench.running.runner import Runner
    from flnl_bench.scenario import dress, generate, stage

    config, training = record.config, record.config.training
    if record.numbers != NUMBERS_VERSION:
        raise BadInput(f"its numbers are of version {record.numbers}, this package makes {NUMBERS_VERSION}")
    if not record.generated:
        raise BadInput("its scenario came from a file, so it cannot be drawn again")
    cls = default_methods().method_class(config.method)
    if cls.version != config.version:
        raise BadInput(f"it is of version {config.version} of {config.method}, installed is {cls.version}")
    dataset = stage(load_dataset(config.dataset, data_dir), config.setting, data_dir)
    scenario = generate(
        dataset, config.partition, config.setting, training.clients, config.seed, training.samples
    )
    options = RunOptions(config.method, data_dir=data_dir)  # nothing is written
    devices = choose_devices(config.device)
    method = cls(**config.hyperparameters)
    return Runner(options, config, method, dress(dataset, scenario), scenario, devices, record.changed)


def _affordable(record: RunRecord, rows: Sequence[RoundRow], budget: float) -> int:
    """Return how many rounds to repeat: all if the budget allows, else a number that the result decides."""
    seconds = record.result().seconds
    if seconds <= budget:
        return len(rows)
    most = max(1, int(len(rows) * budget / seconds))
    digest = hashlib.blake2b(digest_of(record).encode(), digest_size=8).digest()
    return most - int.from_bytes(digest) % max(1, most // 2)


class _Enough(Exception):
    """The asked-for rounds are finished."""


def replay(runner: Runner, count: int, progress: RoundProgress = lambda done, of: None) -> list[RoundRow]:
    """Train the first rounds of a run again, in a temporary folder."""
    rows: list[RoundRow] = []

    def watch(row: Mapping[str, Any]) -> None:
        rows.append(json.loads(json_text(row)))  # as they are read from a file
        progress(len(rows), count)
        if len(rows) == count:
            raise _Enough

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Enough):
        options = dataclasses.replace(runner.options, out=Path(folder))
        dataclasses.replace(runner, options=options).run(progress=watch)
    return rows


def _judge(
    record: RunRecord, rows: Sequence[RoundRow], repeated: Sequence[RoundRow], here: Mapping[str, Any]
) -> tuple[Status, Verdict]:
    """Compare repeated rounds with the recorded ones: by bits on an equal machine, else within a band."""
    share = f"rounds 1 to {len(repeated)} of {len(rows)}"
    if difference := first_difference(rows, repeated):
        number, name, theirs, ours = difference
        there = {key: record.provenance.get(key) for key in here}
        text = f"{name} of round {number + 1} is {theirs!r} in the record and {ours!r} here"
        if here == there and not record.earlier:
            return "self-reported", Verdict("replay", "wrong", f"{text}, on an equal machine")
        if outside := _outside_band(rows, repeated):
            return "self-reported", Verdict("replay", "wrong", outside)
        complete = len(repeated) == len(rows)
        text = f"{share} lie within the band for machines of other kinds ({text})"
        return ("re-run" if complete else "self-reported"), Verdict("replay", "ok", text)
    return "bit-confirmed", Verdict("replay", "ok", f"{share} are equal to the bit")


def first_difference(
    rows: Sequence[RoundRow], repeated: Sequence[RoundRow]
) -> tuple[int, str, Any, Any] | None:
    """Return round, name and both values of the first difference; None if the repeated rounds are equal."""
    for row, other in zip(rows, repeated, strict=False):
        for name in sorted(row.keys() | other.keys()):
            if name not in NEVER_EQUAL and row.get(name) != other.get(name):
                return row["round"], name, row.get(name), other.get(name)
    return None


def _outside_band(rows: Sequence[RoundRow], repeated: Sequence[RoundRow]) -> str | None:
    """Say which value of the record no machine can give; None if all lie within the band."""
    for number, (row, other) in enumerate(zip(rows, repeated, strict=False)):
        early = number < EARLY
        for name in ("clients", "bytes_down", "bytes_up"):
            if early and row[name] != other[name]:
                return f"{name} of round {number + 1} is {row[name]}, and {other[name]} here"
        for name in ("loss", "train_loss") if early else ():
            ours, theirs = other[name], row[name]
            if (ours is None) != (theirs is None) or (
                ours is not None and not math.isclose(ours, theirs, rel_tol=NEAR_LOSS, abs_tol=NEAR_LOSS)
            ):
                return f"{name} of round {number + 1} is {theirs}, and {ours} here: outside of the band"
        points = abs((row["accuracy"] or 0.0) - (other["accuracy"] or 0.0))
        if points > (NEAR_EARLY if early else NEAR_LATE):
            return f"the accuracy of round {number + 1} differs by {points:.2f} points: outside of the band"
    if len(rows) == len(repeated):
        from flnl_bench.results.run_record import summarise

        points = abs((summarise(rows).last10 or 0.0) - (summarise(repeated).last10 or 0.0))
        if points > NEAR_RESULT:
            return f"last-10 differs by {points:.2f} points: outside of the band"
    return None
