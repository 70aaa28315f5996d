"""One run from its configuration to its files: engine and recorder, round by round."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch

from flnl_bench.api import Beliefs, Method
from flnl_bench.config import RunConfig
from flnl_bench.data import Dataset
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput
from flnl_bench.recorder.diagnostics import Probe, as_array, judge
from flnl_bench.recorder.folder import RunFolder, run_folder
from flnl_bench.recorder.provenance import now, provenance
from flnl_bench.recorder.summary import summarise
from flnl_bench.scenario import Scenario

Progress = Callable[[Mapping[str, Any]], None]  # called with each finished round


@dataclasses.dataclass
class Run:
    """A configured run; `play` does whatever is left of it."""

    config: RunConfig
    method: Method
    dataset: Dataset
    scenario: Scenario
    out: Path

    @property
    def folder(self) -> RunFolder:
        """Where its files are."""
        return RunFolder(run_folder(self.out, self.config))

    def finished(self) -> dict[str, Any] | None:
        """The record of the run if it is done already."""
        record = self.folder.read()
        return record if record and record.get("status") == "done" else None

    def play(self, *, fresh: bool = False, progress: Progress = lambda row: None) -> dict[str, Any]:
        """Run or resume to the end and return the record; a finished run is only read."""
        folder = self.folder
        folder.create()
        lock = filelock.FileLock(folder.path / ".lock")
        try:
            with lock.acquire(blocking=False):
                if fresh:
                    _clear(folder.path)
                return self.finished() or self._play(folder, progress)
        except filelock.Timeout:
            raise BadInput(f"another process is working on {folder.path}") from None

    def _play(self, folder: RunFolder, progress: Progress) -> dict[str, Any]:
        device = torch.device(self.config.device)
        engine = Engine(
            self.method, self.dataset, self.scenario, self.config.training, self.config.seed, device
        )
        checkpoint = Checkpoint(folder.path / "checkpoint")
        rounds: list[dict[str, Any]] = []
        if checkpoint.exists:
            state, clients, rounds = checkpoint.load()
            engine.restore(state, clients)
        folder.rewrite_rounds(rounds)
        record = self._record(device, folder)
        folder.write(record)
        probe = Probe(self.scenario)
        for row in rounds:
            progress(row)
        try:
            while engine.round < engine.rounds:
                row = self._row(engine, probe)
                folder.append_round(row)
                rounds.append(row)
                checkpoint.save(engine.state(), engine.federation.states, engine.federation.seen, rounds)
                progress(row)
        except KeyboardInterrupt:
            folder.write({**record, "status": "interrupted", "summary": summarise(rounds) if rounds else None})
            raise
        record |= {"status": "done", "ended": now(), "summary": summarise(rounds)}
        self._save_beliefs(engine, folder)
        folder.write(record)
        shutil.rmtree(checkpoint.folder)
        return folder.read() or record

    def _record(self, device: torch.device, folder: RunFolder) -> dict[str, Any]:
        scenario = self.scenario
        previous = folder.read() or {}
        return {
            "status": "running",
            "config": self.config.as_dict(),
            "scenario": {
                "fingerprint": scenario.fingerprint,
                "clients": len(scenario.clients),
                "samples": int(sum(scenario.sizes)),
                "noise_ratio": scenario.overall,
            },
            "provenance": provenance(device),
            "started": previous.get("started", now()),
            "resumed": previous.get("resumed", -1) + 1,
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
        return row

    def _beliefs(self, engine: Engine) -> dict[int, Beliefs]:
        states = engine.federation.states
        return {k: self.method.beliefs(engine.server, k, state) for k, state in sorted(states.items())}

    def _save_beliefs(self, engine: Engine, folder: RunFolder) -> None:
        """Per-sample and per-client estimates with the truth beside them."""
        beliefs = self._beliefs(engine)
        clients = sorted(beliefs)
        rows = [self.scenario.clients[k] for k in clients]
        arrays: dict[str, np.ndarray] = {
            "row": np.concatenate(rows),
            "client": np.repeat(clients, [len(r) for r in rows]),
            "given": np.concatenate([self.scenario.given[r] for r in rows]),
            "true": np.concatenate([self.scenario.true[r] for r in rows]),
            "realised_ratio": self.scenario.realised,
            "estimated_ratio": np.full(len(self.scenario.clients), np.nan),
        }
        for name in ("clean", "clean_probability", "labels", "pseudo_labels"):
            values = [getattr(beliefs[k], name) for k in clients]
            if all(value is not None for value in values):
                arrays[name] = np.concatenate([as_array(value) for value in values])
        for k in clients:
            ratio = beliefs[k].noise_ratio
            arrays["estimated_ratio"][k] = np.nan if ratio is None else ratio
        temporary = folder.path / ".beliefs.tmp.npz"
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        temporary.rename(folder.path / "beliefs.npz")


def _clear(path: Path) -> None:
    """Remove the files of an earlier run."""
    shutil.rmtree(path / "checkpoint", ignore_errors=True)
    for name in ("run.json", "rounds.jsonl", "beliefs.npz"):
        (path / name).unlink(missing_ok=True)
