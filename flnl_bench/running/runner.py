"""One run from its configuration to its files: engine and recorder, round by round."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.api import Beliefs, Method
from flnl_bench.atomic_files import finite
from flnl_bench.config import NUMBERS_VERSION, RunConfig, differences
from flnl_bench.data import Dataset
from flnl_bench.engine.augmentation import check_views
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput, of_machine, one_line
from flnl_bench.processes import exits_refused, interrupted
from flnl_bench.results.accusations import Accusations, Shares, worst
from flnl_bench.results.diagnostics import ChangedBeliefs, Judge, Probe, gather_beliefs, save_beliefs
from flnl_bench.results.lock import Busy, Claim, claimed
from flnl_bench.results.provenance import changed_code, provenance
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import BELIEFS_FILE, RunRecord, ScenarioFacts, now, summarise
from flnl_bench.running.options import RunOptions, checkpoint_interval
from flnl_bench.running.saved import WEIGHT_FILES, Keeper
from flnl_bench.scenario import Scenario
from flnl_bench.trackers import Tracking, Warn, warn_in_python

ADVICE = "start the run again with --fresh, or choose another folder with --out"

RoundCallback = Callable[[Mapping[str, Any]], None]  # called with each finished round


class FilesLost(BadInput):
    """Files of a run were removed or changed while it was running."""

    def __init__(self, file: Path) -> None:
        super().__init__(
            f"{file} was removed or changed during the run; the same command resumes from the checkpoint, "
            "which has all rounds"
        )


class Diagnostics:
    """The numbers of each round that need the truth."""

    def __init__(self, method: Method, scenario: Scenario) -> None:
        self.scenario = scenario
        self.probe, self.beliefs = Probe(scenario), ChangedBeliefs(method, scenario)
        self.judge, self.accusations = Judge(scenario), Accusations(scenario)

    def round(self, engine: Engine, class_accuracy: Shares, clients: Sequence[int]) -> dict[str, Any]:
        """Return the numbers after a round in which these clients trained."""
        federation = engine.federation
        changed = self.beliefs.after(engine.server, engine.states_on_host, federation.seen, engine.changed)
        self.judge.update(changed)
        self.accusations.update(changed)
        return {
            **self.probe.measure(engine.predict_train(self.probe.rows)),
            **worst(self.scenario, class_accuracy),
            **self.judge.report(clients),
            **self.accusations.report(),
        }


@dataclasses.dataclass
class Runner:
    """Carries out one run whose data and method are loaded."""

    options: RunOptions
    config: RunConfig
    method: Method
    dataset: Dataset
    scenario: Scenario
    devices: Devices
    changed: Mapping[str, Any]  # hyper-parameters that differ from preset and variant
    warn: Warn = warn_in_python  # takes the warnings of the run

    @property
    def folder(self) -> RunFolder:
        """The folder of its files."""
        return RunFolder(self.options.out / self.config.place)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint from which it resumes."""
        return Checkpoint(self.folder.checkpoint)

    def existing_record(self) -> RunRecord | None:
        """Return the record in the folder; None if there is none, and an error if it is of another run."""
        folder, record = self.folder, self.folder.read()
        if record is None:
            if self.checkpoint.exists:
                raise BadInput(f"{folder.path} has a checkpoint, but no run.json; {ADVICE}")
            return None
        ours = {**self.config.flat(), "numbers": NUMBERS_VERSION}
        theirs = {**record.config.flat(), "numbers": record.numbers}
        if differs := differences(theirs, ours):
            listed = ", ".join(f"{name} is {a!r} there and {b!r} here" for name, (a, b) in differs.items())
            raise BadInput(f"{folder.path} has another run with the same hash: {listed}; {ADVICE}")
        if record.scenario.fingerprint != self.scenario.fingerprint:
            raise BadInput(
                f"the data have changed since the run in {folder.path}: its scenario is "
                f"{record.scenario.fingerprint}, now it is {self.scenario.fingerprint}; {ADVICE}"
            )
        return record

    def finished(self) -> RunRecord | None:
        """Return the record if the run is done already."""
        record = self.existing_record()
        if record is None or not record.done:
            return None
        try:
            record.confirmed(record.read_rounds())
        except ValueError as error:
            raise BadInput(
                f"the finished run in {self.folder.path} is not complete: {error}; {ADVICE}"
            ) from None
        return record

    def notes(self) -> list[str]:
        """Return warnings about the record in the folder: other code, or no saved model."""
        notes, path, record = [], self.folder.path, self.existing_record()
        if record and (names := ", ".join(changed_code(record, type(self.method)))):
            notes.append(f"the code of {names} has changed since {path} was started; --fresh starts again")
        if self.options.save_model and record and record.done and not (path / WEIGHT_FILES["final"]).exists():
            notes.append(f"{path} was made without --save-model; --fresh runs it again")
        return notes

    def run(self, *, fresh: bool = False, progress: RoundCallback = lambda row: None) -> RunRecord:
        """Run or resume to the end and return the record; a finished run is only read."""
        check_views(self.method.name, self.method.views())
        folder = self.folder
        if not fresh and (record := self.finished()):
            with contextlib.suppress(OSError, BadInput):  # a read-only disk keeps the leftovers of a kill
                if folder.leftovers():
                    with claimed(folder.path):
                        folder.sweep()
            return record
        try:
            engine = Engine(
                self.method, self.dataset, self.scenario, self.config.training, self.config.seed, self.devices
            )
            with contextlib.closing(engine), exits_refused():  # made first: an impossible run writes nothing
                folder.create()
                with claimed(folder.path) as claim:
                    folder.sweep_parts()
                    if fresh:
                        folder.clear()
                    return self.finished() or self._resume(engine, folder, claim, progress)
        except SystemExit as stop:  # of a hook: it must not end the program silently
            raise RuntimeError(f"sys.exit({stop.code!r}) was called") from stop
        except Exception:
            if interrupted():
                raise KeyboardInterrupt from None
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as stop:  # GeneratorExit, or a library's own kind
            raise RuntimeError(f"{type(stop).__name__} was raised") from stop

    def _resume(self, engine: Engine, folder: RunFolder, claim: Claim, progress: RoundCallback) -> RunRecord:
        """Run all rounds that the checkpoint does not have."""
        checkpoint = Checkpoint(folder.checkpoint, claim.check)
        least_rounds, least_seconds = checkpoint_interval(self.options.checkpoint_every)
        rounds: list[dict[str, Any]] = []
        resumes = checkpoint.exists
        if resumes:
            parts, rounds = checkpoint.load()
            engine.restore(parts)
        record = self._record(folder, resumes)
        claim.check()  # much time may have passed
        folder.rewrite_rounds(rounds)
        folder.write(record)
        diagnostics, keeper = Diagnostics(self.method, self.scenario), None
        if self.options.save_model or (folder.path / WEIGHT_FILES["best"]).exists():
            keeper = Keeper(folder.path, self.config, self.dataset, rounds, self.warn)
        tracking = Tracking(self.options.tracker, self.warn)
        saved_rounds, saved_time = len(rounds), time.monotonic()
        training = in_callback = False
        try:
            tracking.start(record, rounds)
            in_callback = True
            for row in rounds:
                progress(copy.deepcopy(row))  # a caller may keep it, and change it
            in_callback = False
            if self._keeps(engine.round):  # the process may have been killed before the copy was complete
                checkpoint.copy(folder.kept(engine.round))
            while engine.round < engine.rounds:
                if interrupted():
                    raise KeyboardInterrupt
                training = True
                row = self._row(engine, diagnostics)
                claim.check()
                if keeper:
                    keeper.round(engine.server.weights, row)
                try:
                    folder.append_round(row)
                except FileNotFoundError:
                    raise FilesLost(folder.rounds_file) from None
                rounds.append(row)
                training = False
                waited = len(rounds) - saved_rounds >= least_rounds and (
                    time.monotonic() - saved_time >= least_seconds
                )
                if waited or engine.round == engine.rounds or self._keeps(engine.round):
                    checkpoint.save(engine, rounds, wait=False)
                    saved_rounds, saved_time = len(rounds), time.monotonic()
                if self._keeps(engine.round):
                    checkpoint.copy(folder.kept(engine.round))
                tracking.round(row)
                in_callback = True
                progress(copy.deepcopy(row))
                in_callback = False
            checkpoint.wait()
            claim.check()
            if keeper:
                keeper.end(engine.server.weights, rounds[-1])
            save_beliefs(folder.path / BELIEFS_FILE, self._beliefs(engine), self.scenario)
            if len(folder.read_rounds()) != len(rounds):
                raise FilesLost(folder.rounds_file)
        except Busy:
            tracking.end("interrupted", {})
            raise  # the files belong to another process now
        except BaseException as error:
            # A callback that fails, files that disappear and a full disk are not faults of the method.
            stopped = in_callback or interrupted() or isinstance(error, KeyboardInterrupt | FilesLost)
            stopped = stopped or of_machine(error)
            record = dataclasses.replace(
                record,
                status="interrupted" if stopped else "failed",
                summary=summarise(rounds) if rounds else None,
                error=None if stopped else one_line(error),
                traceback=None if stopped else traceback.format_exc(),
            )
            with contextlib.suppress(Busy, *((OSError,) if of_machine(error) else ())):
                claim.check()
                folder.write(record)
                if not training and saved_rounds < len(rounds):
                    checkpoint.save(engine, rounds, wait=False)
                checkpoint.wait()
            tracking.end(record.status, dataclasses.asdict(record.summary) if record.summary else {})
            raise
        record = dataclasses.replace(record, status="done", ended=now(), summary=summarise(rounds))
        claim.check()
        folder.write(record)
        folder.sweep()
        tracking.end("done", dataclasses.asdict(summarise(rounds)))
        return record

    def _keeps(self, rounds: int) -> bool:
        """Return whether the checkpoint after so many rounds stays after the run."""
        every = self.options.keep_checkpoints
        return every is not None and 0 < rounds < self.config.training.rounds and rounds % every == 0

    def _record(self, folder: RunFolder, resumes: bool) -> RunRecord:
        scenario, previous = self.scenario, folder.read()
        here = provenance(self.config, self.method, self.devices.server, len(self.devices.workers))
        before = [*previous.earlier, previous.provenance] if resumes and previous else []
        return RunRecord(
            status="running",
            config=self.config,
            changed=self.changed,
            label=self.options.label,
            scenario=ScenarioFacts(
                fingerprint=scenario.fingerprint,
                clients=len(scenario.clients),
                samples=int(sum(scenario.sizes)),
                noise_ratio=scenario.overall if scenario.truth_known else None,
            ),
            provenance=here,
            earlier=tuple(about for about in before if about != here),
            started=(previous.started if previous else None) or now(),
            resumed=(previous.resumed if previous else 0) + resumes,
            folder=folder.path,
        )

    def _row(self, engine: Engine, diagnostics: Diagnostics) -> dict[str, Any]:
        """Run one round and return it as it is recorded."""
        report = dataclasses.asdict(engine.run_round())
        row = {**report, "clients": list(report["clients"])}
        class_accuracy = row.pop("class_accuracy")
        if self.scenario.truth_known:
            row["diagnostics"] = diagnostics.round(engine, class_accuracy, row["clients"])
        recorded: dict[str, Any] = finite(row)
        return recorded

    def _beliefs(self, engine: Engine) -> dict[int, Beliefs]:
        return gather_beliefs(self.method, engine.server, engine.states_on_host, self.scenario.sizes)
