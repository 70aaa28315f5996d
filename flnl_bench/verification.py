"""Verification of runs: recompute the summary, draw the scenario again, and train some rounds again.

A run that nobody checked is *self-reported*. It becomes *re-run* if a complete repetition on another kind of
machine lies within the stated band, and *bit-confirmed* in the rounds that a repetition gives to the bit. If
not all rounds fit into the time, a hash of the result chooses stretches between kept checkpoints. The outcome
is a file next to run.json. It has the digest of the checked files, so editing them makes it invalid.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flnl_bench.atomic_files import json_text, replace_file
from flnl_bench.config import NUMBERS_VERSION, as_set
from flnl_bench.errors import BadInput, BrokenContract, MethodFailed, MissingData
from flnl_bench.leaderboards.statistics import t_quantile
from flnl_bench.results.beliefs import BELIEF_ARRAYS
from flnl_bench.results.published import published_record
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import RoundRow, RunRecord, now, summarise
from flnl_bench.results.verified import CONFIRMED, RE_RUN, VERIFIED_FILE, Status, digest_of

if TYPE_CHECKING:
    from flnl_bench.running.runner import Runner

BUDGET = 300.0  # seconds of recorded training that are repeated by default
EARLY = 2  # rounds in which machines of other kinds are compared closely
NEAR_LOSS = 3e-3  # relative difference of losses in these rounds
NEAR_EARLY, NEAR_LATE, NEAR_RESULT = 4.0, 15.0, 3.0  # points of accuracy: early rounds, later ones, last-10
CONTROL = "fedavg"
NEVER_EQUAL = ("seconds",)  # of a round
STATE, BELIEFS = "state", "beliefs"  # digests that a round gets: of its kept checkpoint, of beliefs.npz
HASHED_NAME = re.compile(r".+-[0-9a-f]{16}")  # of the folder of a run, unless it was renamed

RoundProgress = Callable[[int, int], None]  # rounds that are repeated, of how many
Stretch = tuple[int, int]  # the rounds from the first number to the second one, which is excluded


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
        rounds: how many to train again; by default those that fit into `budget`.
        budget: seconds of the recorded time.
        data_dir: where the data set lies.
        peers: other runs, among which the control of the same scenario is looked for.
        progress: called after each repeated round.
    """
    rows = record.read_rounds()
    findings = [_summary(record, rows), _place(record)]
    outcome = Verification(record, Status(), findings)
    if findings[0].state == "wrong":
        return outcome
    findings += [*_published(record, rows), _control(record, peers)]
    try:
        if outcome.wrong:
            return outcome
        runner = _runner_of(record, data_dir)
        findings += [_scenario(record, runner), _code(record, runner), _beliefs(record, runner)]
        rows, kept = _with_digests(record, rows, findings)
        if outcome.wrong:
            return outcome
        if rounds is None:
            rounds = max(1, int(len(rows) * budget / max(budget, record.result().seconds)))
        chosen = stretches(kept, len(rows), rounds, digest_of(record))
        total, done = sum(stop - start for start, stop in chosen), itertools.count(1)
        repeated = [
            replay(runner, record, stretch, lambda: progress(next(done), total)) for stretch in chosen
        ]
    except (BadInput, MissingData, MethodFailed, BrokenContract) as error:
        findings.append(Verdict("replay", "note", f"not possible here: {error}"))
        return outcome
    status, finding = _judge(record, rows, repeated, runner)
    return Verification(record, status, [*findings, finding])


def save_verification(verification: Verification) -> None:
    """Write the outcome next to run.json."""
    content = {
        "status": verification.status.name,
        "rounds": verification.status.rounds,
        "of": verification.status.of,
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
    name, here = record.config.place.name, record.folder.absolute().name
    if here == name:
        return Verdict("configuration", "ok", "its hash is the name of the folder")
    if not HASHED_NAME.fullmatch(here):
        return Verdict("configuration", "note", f"the folder {here} was renamed: it has no hash to compare")
    return Verdict("configuration", "wrong", f"its hash gives the folder {name}, not {here}")


def _published(record: RunRecord, rows: Sequence[RoundRow]) -> list[Verdict]:
    """Compare the rounds with those of the published run in its place, if there is another one."""
    other = None if record.published else published_record(record)
    if other is None:
        return []
    difference = first_difference(rows, other.read_rounds())
    if difference is None:
        return [Verdict("published", "ok", "its rounds are those of the published run")]
    number, name, ours, theirs = difference
    machines = [_machine(about) for run in (record, other) for about in (run.provenance, *run.earlier)]
    same = None not in machines[0].values() and all(machine == machines[0] for machine in machines)
    text = f"{name} of round {number + 1} is {ours!r}, and {theirs!r} in the published run"
    return [Verdict("published", "wrong" if same else "note", text + same * ", from an equal machine")]


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
    from flnl_bench.results.provenance import changed_code, code_digests

    if names := changed_code(record, type(runner.method)):
        return Verdict("code", "wrong", f"made by other code of {', '.join(names)}")
    if unknown := sorted(code_digests(record.config, type(runner.method)).keys() - record.code.keys()):
        return Verdict("code", "note", f"the record has no digest of the code of the {', '.join(unknown)}")
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
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    half = t_quantile(0.995, len(values) - 1) * deviation * math.sqrt(1 + 1 / len(values))
    return mean - half, mean + half


# -- replay ------------------------------------------------------------------------------------------
def _runner_of(record: RunRecord, data_dir: Path | None) -> Runner:
    """Return a run with the recorded configuration, on a scenario that is drawn here."""
    from flnl_bench.engine.devices import choose_devices
    from flnl_bench.methods import default_methods
    from flnl_bench.running.options import RunOptions
    from flnl_bench.running.resolve import cached_dataset
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
    dataset = stage(cached_dataset(config.dataset, data_dir), config.setting, data_dir)
    scenario = generate(
        dataset, config.partition, config.setting, training.clients, config.seed, training.samples
    )
    options = RunOptions(config.method, data_dir=data_dir)  # nothing is written
    devices = choose_devices(config.device)
    values = {name: as_set(value, name) for name, value in config.hyperparameters.items()}
    method = default_methods().make(config.method, {}, values)
    return Runner(options, config, method, dress(dataset, scenario), scenario, devices, record.changed)


def _with_digests(
    record: RunRecord, rows: Sequence[RoundRow], findings: list[Verdict]
) -> tuple[list[RoundRow], list[int]]:
    """Add the digests of kept checkpoints and beliefs to the rounds; return the rounds of the checkpoints."""
    digested, folder = [dict(row) for row in rows], RunFolder(record.folder)
    kept = [number for number in folder.all_kept() if 0 < number < len(rows)]
    wrong = []
    for number in kept:
        try:
            digest, rounds = _state(folder.kept(number))
        except BadInput as error:
            wrong.append(str(error))
            continue
        digested[number - 1][STATE] = digest
        if rounds != list(rows[:number]):
            wrong.append(f"the rounds in {folder.kept(number).name} are not those of the run")
    if kept:
        text = "; ".join(wrong) or f"{len(kept)} are kept, with the rounds of the run"
        findings.append(Verdict("checkpoints", "wrong" if wrong else "ok", text))
    if record.has_beliefs:
        digested[-1][BELIEFS] = _arrays_digest(record)
    return digested, kept


def _state(checkpoint: Path) -> tuple[str, list[RoundRow]]:
    """Return a digest of the state in a checkpoint, and its rounds."""
    from flnl_bench.engine.checkpoint import Checkpoint, tree_digest

    with tempfile.TemporaryDirectory() as folder:  # `load` removes incomplete files
        parts, rounds = Checkpoint(shutil.copytree(checkpoint, Path(folder) / checkpoint.name)).load()
    digests = sorted((repr(name), tree_digest(part).hex()) for name, part in parts.items())
    return hashlib.blake2b(repr(digests).encode(), digest_size=8).hexdigest(), rounds


def _arrays_digest(record: RunRecord) -> str:
    """Return a digest of the beliefs of a run."""
    arrays = record.read_beliefs((), BELIEF_ARRAYS)
    texts = (f"{name} {array.dtype.kind} {array.tolist()}" for name, array in sorted(arrays.items()))
    return hashlib.blake2b("".join(texts).encode(), digest_size=8).hexdigest()


def stretches(kept: Sequence[int], total: int, count: int, digest: str) -> list[Stretch]:
    """Choose `count` rounds in stretches that start at a kept checkpoint or at the beginning, by a hash."""

    def order(stretch: Stretch) -> str:
        return hashlib.blake2b(f"{digest} {stretch[0]}".encode()).hexdigest()

    chosen = []
    for start, stop in sorted(itertools.pairwise([0, *kept, total]), key=order):
        if count > 0:
            chosen.append((start, min(stop, start + count)))
            count -= stop - start
    return sorted(chosen)


def _machine(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded facts that decide how numbers are rounded."""
    return {key: about.get(key) for key in ("libraries", "device", "instructions", "cpu")}


class _Enough(Exception):
    """The asked-for rounds are finished."""


def replay(
    runner: Runner, record: RunRecord, stretch: Stretch, progress: Callable[[], None] = lambda: None
) -> list[RoundRow]:
    """Train a stretch of a run again, in a temporary folder; the last round gets digests of what is left."""
    from flnl_bench.running.api import finish

    rows: list[RoundRow] = []
    start, stop = stretch

    def watch(row: Mapping[str, Any]) -> None:
        if row["round"] >= start:  # the others come from the checkpoint
            rows.append(json.loads(json_text(row)))  # as they are read from a file
            progress()
        if row["round"] + 1 == stop < record.config.training.rounds:
            raise _Enough

    with tempfile.TemporaryDirectory() as out:
        options = dataclasses.replace(
            runner.options, out=Path(out), checkpoint_every=stop, keep_checkpoints=stop
        )
        again = dataclasses.replace(runner, options=options)
        if start:
            shutil.copytree(RunFolder(record.folder).kept(start), again.folder.checkpoint)
            again.folder.write(dataclasses.replace(record, status="interrupted"))
        try:
            ended = finish(again, progress=watch)
            rows[-1] |= {BELIEFS: _arrays_digest(ended)} if ended.has_beliefs else {}
        except _Enough:
            rows[-1][STATE] = _state(again.folder.kept(stop))[0]
    return rows


def _judge(
    record: RunRecord, rows: Sequence[RoundRow], repeated: Sequence[Sequence[RoundRow]], runner: Runner
) -> tuple[Status, Verdict]:
    """Compare repeated rounds with the recorded ones: by bits on an equal machine, else within a band."""
    from flnl_bench.results.provenance import machine

    again = [row for stretch in repeated for row in stretch]
    count, complete = len(again), len(again) == len(rows)
    ends = [f"{stretch[0]['round'] + 1} to {stretch[-1]['round'] + 1}" for stretch in repeated]
    share = f"rounds {', '.join(['1 to ' + str(count)] if complete else ends)} of {len(rows)}"
    # A stretch may end where no checkpoint is kept, and a user may have removed the beliefs.
    ignored = [{STATE, BELIEFS} - rows[row["round"]].keys() for row in again]
    known = [{key: row[key] for key in row.keys() - names} for row, names in zip(again, ignored, strict=True)]
    if difference := first_difference([rows[row["round"]] for row in known], known):
        number, name, theirs, ours = difference
        text = f"{name} of round {number + 1} is {theirs!r} in the record and {ours!r} here"
        if _machine(record.provenance) == machine(runner.devices.server) and not record.earlier:
            return Status(), Verdict("replay", "wrong", f"{text}, on an equal machine")
        if outside := _outside_band(rows, repeated):
            return Status(), Verdict("replay", "wrong", outside)
        text = f"{share} lie within the band for machines of other kinds ({text})"
        status = Status(RE_RUN, count, count) if complete else Status()
        return status, Verdict("replay", "ok", text)
    return Status(CONFIRMED, count, len(rows)), Verdict("replay", "ok", f"{share} are equal to the bit")


def first_difference(
    rows: Sequence[RoundRow], repeated: Sequence[RoundRow]
) -> tuple[int, str, Any, Any] | None:
    """Return round, name and both values of the first difference; None if the repeated rounds are equal."""
    for row, other in zip(rows, repeated, strict=False):
        for name in sorted(row.keys() | other.keys()):
            if name not in NEVER_EQUAL and row.get(name) != other.get(name):
                return row["round"], name, row.get(name), other.get(name)
    return None


def _outside_band(rows: Sequence[RoundRow], repeated: Sequence[Sequence[RoundRow]]) -> str | None:
    """Say which value of the record no machine can give; None if all lie within the band."""
    again = [(place, other) for stretch in repeated for place, other in enumerate(stretch)]
    for place, other in again:
        row, number, early = rows[other["round"]], other["round"] + 1, place < EARLY
        for name in ("clients", "bytes_down", "bytes_up"):
            if early and row[name] != other[name]:
                return f"{name} of round {number} is {row[name]}, and {other[name]} here"
        for name in ("loss", "train_loss") if early else ():
            ours, theirs = other[name], row[name]
            if (ours is None) != (theirs is None) or (
                ours is not None and not math.isclose(ours, theirs, rel_tol=NEAR_LOSS, abs_tol=NEAR_LOSS)
            ):
                return f"{name} of round {number} is {theirs}, and {ours} here: outside of the band"
        points = abs((row["accuracy"] or 0.0) - (other["accuracy"] or 0.0))
        if points > (NEAR_EARLY if early else NEAR_LATE):
            return f"the accuracy of round {number} differs by {points:.2f} points: outside of the band"
    if len(rows) == len(again):
        points = abs((summarise(rows).last10 or 0.0) - (summarise([row for _, row in again]).last10 or 0.0))
        if points > NEAR_RESULT:
            return f"last-10 differs by {points:.2f} points: outside of the band"
    return None
