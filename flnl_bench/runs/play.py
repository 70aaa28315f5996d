"""One run from its configuration to its files: engine and recorder, round by round."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flnl_bench.api import Beliefs, Method
from flnl_bench.config import RunConfig
from flnl_bench.data import Dataset
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.views import check_views
from flnl_bench.errors import BadInput, one_line
from flnl_bench.files import finite
from flnl_bench.recorder.claim import Busy, Claim, claimed
from flnl_bench.recorder.diagnostics import Probe, gather_beliefs, judge, save_beliefs
from flnl_bench.recorder.provenance import now, provenance, source
from flnl_bench.recorder.record import RunFolder, run_folder, summarise, trusted
from flnl_bench.scenario import Scenario

RoundCallback = Callable[[Mapping[str, Any]], None]  # called with each finished round


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

    @property
    def folder(self) -> RunFolder:
        """Where its files are."""
        return RunFolder(run_folder(self.out, self.config))

    @property
    def checkpoint(self) -> Checkpoint:
        """What it can go on from."""
        return Checkpoint(self.folder.path / "checkpoint")

    @property
    def code_changed(self) -> bool:
        """Whether what is there was made by other code of a plugin; NUMBERS_VERSION speaks for our own."""
        record = trusted(self.folder.path) or {}
        parts = [record.get("provenance", {}), *record.get("earlier", [])]
        before = {about["method"]["source"] for about in parts if "method" in about}
        ours = type(self.method).__module__.startswith("flnl_methods.")
        return not ours and bool(before - {source(self.method)})

    def finished(self) -> dict[str, Any] | None:
        """The record of the run if it is done already, on the same federation."""
        record = trusted(self.folder.path)
        if record and record["scenario"]["fingerprint"] != self.scenario.fingerprint:
            raise BadInput(
                f"the data have changed since the run in {self.folder.path}: its scenario is "
                f"{record['scenario']['fingerprint']}, now it is {self.scenario.fingerprint}; "
                "start the run anew with --fresh, or choose another folder with --out"
            )
        return record if record and record.get("status") == "done" else None

    def play(self, *, fresh: bool = False, progress: RoundCallback = lambda row: None) -> dict[str, Any]:
        """Run or resume to the end and return the record; a finished run is only read."""
        check_views(self.method.name, self.method.views())
        folder = self.folder
        folder.create()
        with claimed(folder.path) as claim:
            if fresh:
                _clear(folder.path)
            return self.finished() or self._play(folder, claim, progress)

    def _play(self, folder: RunFolder, claim: Claim, progress: RoundCallback) -> dict[str, Any]:
        engine = Engine(
            self.method, self.dataset, self.scenario, self.config.training, self.config.seed, self.devices
        )
        with contextlib.closing(engine):
            return self._go_on(engine, folder, claim, progress)

    def _go_on(
        self, engine: Engine, folder: RunFolder, claim: Claim, progress: RoundCallback
    ) -> dict[str, Any]:
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
        probe = Probe(self.scenario)
        for row in rounds:
            progress(row)
        try:
            while engine.round < engine.rounds:
                row = self._row(engine, probe)
                claim.check()
                folder.append_round(row)
                rounds.append(row)
                checkpoint.save(engine.state(), engine.federation.states, engine.federation.seen, rounds)
                progress(row)
            claim.check()
            save_beliefs(folder.path / "beliefs.npz", self._beliefs(engine), self.scenario)
        except Busy:
            raise  # the files are another's now
        except (KeyboardInterrupt, Exception) as error:
            stopped = isinstance(error, KeyboardInterrupt)
            record |= {"status": "interrupted" if stopped else "failed"}
            record |= {} if stopped else {"error": one_line(error), "traceback": traceback.format_exc()}
            with contextlib.suppress(Busy):
                claim.check()
                folder.write({**record, "summary": summarise(rounds) if rounds else None})
            raise
        record |= {"status": "done", "ended": now(), "summary": summarise(rounds)}
        claim.check()
        folder.write(record)
        shutil.rmtree(checkpoint.folder)
        return folder.read() or record

    def _record(self, folder: RunFolder, resumes: bool) -> dict[str, Any]:
        scenario = self.scenario
        previous = trusted(folder.path) or {}
        here = provenance(self.method, self.devices.server, len(self.devices.workers))
        before = [*previous.get("earlier", []), previous["provenance"]] if resumes and previous else []
        earlier = [about for about in before if about != here]
        return {
            "status": "running",
            "config": self.config.as_dict(),
            **({} if self.changed is None else {"changed": dict(self.changed)}),
            **({} if self.label is None else {"label": self.label}),
            "scenario": {
                "fingerprint": scenario.fingerprint,
                "clients": len(scenario.clients),
                "samples": int(sum(scenario.sizes)),
                "noise_ratio": scenario.overall if scenario.truth_known else None,
            },
            "provenance": here,
            **({"earlier": earlier} if earlier else {}),
            "started": previous.get("started", now()),
            "resumed": previous.get("resumed", 0) + resumes,
            "summary": None,
        }

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


def _clear(path: Path) -> None:
    """Remove the files of an earlier run."""
    shutil.rmtree(path / "checkpoint", ignore_errors=True)
    for name in ("run.json", "rounds.jsonl", "beliefs.npz"):
        (path / name).unlink(missing_ok=True)
