"""One run from its configuration to its files: engine and recorder, round by round."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.api import Beliefs, Method
from flnl_bench.atomic_files import finite
from flnl_bench.config import RunConfig
from flnl_bench.data import Dataset
from flnl_bench.engine.augmentation import check_views
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import interrupted
from flnl_bench.results.diagnostics import Probe, gather_beliefs, judge, save_beliefs
from flnl_bench.results.lock import Busy, Claim, claimed
from flnl_bench.results.provenance import changed_code, provenance
from flnl_bench.results.run_folder import RunFolder, run_folder
from flnl_bench.results.run_record import RunRecord, ScenarioFacts, now, summarise
from flnl_bench.running.saved import FILES, Keeper
from flnl_bench.running.tracking import Tell, Tracking, warn
from flnl_bench.scenario import Scenario

RoundCallback = Callable[[Mapping[str, Any]], None]  # called with each finished round


class Lost(BadInput):
    """Files of a run were removed while it was going."""


@dataclasses.dataclass
class Run:
    """A configured run; `play` does whatever is left of it."""

    config: RunConfig
    method: Method
    dataset: Dataset
    scenario: Scenario
    out: Path
    devices: Devices
    changed: Mapping[str, Any] | None = None  # hyper-parameters not as preset and variant say; None: unknown
    label: str | None = None  # what a suite calls it, if that is not the method's name
    trackers: tuple[str, ...] = ()
    save_model: bool = False  # keep the final and the best global weights
    tell: Tell = warn  # what should be said while it is played

    @property
    def folder(self) -> RunFolder:
        """Where its files are."""
        return RunFolder(run_folder(self.out, self.config))

    @property
    def checkpoint(self) -> Checkpoint:
        """What it can go on from."""
        return Checkpoint(self.folder.checkpoint)

    @property
    def changed_code(self) -> list[str]:
        """The names of the method and the plugins' entries whose code has changed since the run began."""
        record = self.folder.read()
        return changed_code(record, type(self.method)) if record else []

    def finished(self) -> RunRecord | None:
        """The record of the run if it is done already, on the same federation."""
        folder = self.folder
        record, anew = folder.read(), "start the run anew with --fresh, or choose another folder with --out"
        if record and record.scenario.fingerprint != self.scenario.fingerprint:
            raise BadInput(
                f"the data have changed since the run in {folder.path}: its scenario is "
                f"{record.scenario.fingerprint}, now it is {self.scenario.fingerprint}; {anew}"
            )
        if record and record.config.hash != self.config.hash:
            raise BadInput(f"{folder.path / 'run.json'} is of another configuration; {anew}")
        if record is None or record.status != "done":
            return None
        try:
            record.confirmed(folder.read_rounds())
        except ValueError as error:
            raise BadInput(f"the finished run in {folder.path} is not whole: {error}; {anew}") from None
        return record

    def play(self, *, fresh: bool = False, progress: RoundCallback = lambda row: None) -> RunRecord:
        """Run or resume to the end and return the record; a finished run is only read."""
        check_views(self.method.name, self.method.views())
        folder = self.folder
        if not fresh and (record := self.finished()):
            self._tidy(folder)
            return record
        try:
            engine = Engine(
                self.method, self.dataset, self.scenario, self.config.training, self.config.seed, self.devices
            )
            with contextlib.closing(engine):  # built first: what cannot be leaves nothing behind
                folder.create()
                with claimed(folder.path) as claim:
                    folder.sweep_parts()
                    if fresh:
                        folder.clear()
                    return self.finished() or self._go_on(engine, folder, claim, progress)
        except SystemExit as stop:  # of a hook: it must not pass for the end of the program
            raise RuntimeError(f"sys.exit({stop.code!r}) was called") from stop
        except Exception:
            if interrupted():
                raise KeyboardInterrupt from None
            raise

    def _tidy(self, folder: RunFolder) -> None:
        """Remove what a kill after the last round has left; a disk that can only be read keeps it."""
        with contextlib.suppress(OSError, BadInput):
            folder.check()
            if folder.leftovers():
                with claimed(folder.path):
                    folder.sweep()

    def _go_on(self, engine: Engine, folder: RunFolder, claim: Claim, progress: RoundCallback) -> RunRecord:
        checkpoint = self.checkpoint
        rounds: list[dict[str, Any]] = []
        resumes = checkpoint.exists
        if resumes:
            state, clients, rounds = checkpoint.load()
            engine.restore(state, clients)
        record = self._record(folder, resumes)
        claim.check()  # much time may have passed
        folder.rewrite_rounds(rounds)
        folder.write(record)
        probe, keeper = Probe(self.scenario), self._keeper(rounds)
        tracking = Tracking(self.trackers, self.tell)
        for row in rounds:
            progress(copy.deepcopy(row))  # a caller may keep it, and change it
        telling = False
        try:
            tracking.start(self.config, folder.path / "trackers", rounds)
            while engine.round < engine.rounds:
                if interrupted():
                    raise KeyboardInterrupt
                row = self._row(engine, probe)
                claim.check()
                if keeper:
                    keeper.round(engine.server.weights, row)
                _append(folder, row)
                rounds.append(row)
                checkpoint.save(engine.state(), engine.federation.states, engine.federation.seen, rounds)
                tracking.round(row)
                telling = True
                progress(copy.deepcopy(row))
                telling = False
            claim.check()
            if keeper:
                keeper.end(engine.server.weights, rounds[-1])
            save_beliefs(folder.path / "beliefs.npz", self._beliefs(engine), self.scenario)
            _check_rounds(folder, rounds)
        except Busy:
            raise  # the files are another's now
        except (KeyboardInterrupt, SystemExit, Exception) as error:
            # Whoever watches, or removes files, is not the method.
            stopped = telling or interrupted() or isinstance(error, KeyboardInterrupt | Lost)
            record = dataclasses.replace(
                record,
                status="interrupted" if stopped else "failed",
                summary=summarise(rounds) if rounds else None,
                error=None if stopped else one_line(error),
                traceback=None if stopped else traceback.format_exc(),
            )
            with contextlib.suppress(Busy):
                claim.check()
                folder.write(record)
            tracking.end(record.status, dataclasses.asdict(record.summary) if record.summary else {})
            raise
        record = dataclasses.replace(record, status="done", ended=now(), summary=summarise(rounds))
        claim.check()
        folder.write(record)
        folder.sweep()
        tracking.end("done", dataclasses.asdict(summarise(rounds)))
        return folder.read() or record

    def _keeper(self, rounds: list[dict[str, Any]]) -> Keeper | None:
        """Who keeps the weights, if that was asked for, now or when the run was begun."""
        path = self.folder.path
        if not self.save_model and not (path / FILES["best"]).exists():
            return None
        return Keeper(path, self.config, self.dataset, rounds, self.tell)

    def _record(self, folder: RunFolder, resumes: bool) -> RunRecord:
        scenario, previous = self.scenario, folder.read()
        here = provenance(self.config, self.method, self.devices.server, len(self.devices.workers))
        before = [*previous.earlier, previous.provenance] if resumes and previous else []
        return RunRecord(
            status="running",
            config=self.config,
            changed=self.changed,
            label=self.label,
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
        )

    def _row(self, engine: Engine, probe: Probe) -> dict[str, Any]:
        """One round as it is recorded."""
        report = dataclasses.asdict(engine.play_round())
        row = {**report, "clients": list(report["clients"])}
        if self.scenario.truth_known:
            row["diagnostics"] = {
                **probe.look(engine.predict_train(probe.rows)),
                **judge(self._beliefs(engine), self.scenario, row["clients"]),
            }
        return finite(row)

    def _beliefs(self, engine: Engine) -> dict[int, Beliefs]:
        return gather_beliefs(self.method, engine.server, engine.federation.states, self.scenario.sizes)


def _append(folder: RunFolder, row: Mapping[str, Any]) -> None:
    try:
        folder.append_round(row)
    except FileNotFoundError:
        raise _lost(folder) from None


def _check_rounds(folder: RunFolder, rounds: Sequence[Mapping[str, Any]]) -> None:
    """A run does not end as done if rounds.jsonl lost some of its rounds on the way."""
    if len(folder.read_rounds()) != len(rounds):
        raise _lost(folder)


def _lost(folder: RunFolder) -> Lost:
    return Lost(
        f"{folder.rounds_file} was removed or changed while the run was going; the same command goes on from "
        "the checkpoint, which has all rounds"
    )
