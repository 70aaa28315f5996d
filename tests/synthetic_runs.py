"""Run folders as the runner leaves them, made in no time, for the tests of the leaderboard."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path

from flnl_bench.config import NUMBERS_VERSION, RunConfig
from flnl_bench.data import Dataset, load_dataset
from flnl_bench.methods import default_methods, values_of
from flnl_bench.results.run_folder import RunFolder, rounds_text
from flnl_bench.results.run_record import RunRecord, ScenarioFacts, Summary, summarise
from flnl_bench.running.presets import load_preset
from flnl_bench.scenario import Scenario, generate

SEEDS = (1, 13, 42)
preset_of = functools.cache(load_preset)


def write_run(
    out: Path,
    method="fedavg",
    setting="sym-1.0",
    seed=1,
    accuracy=50.0,
    *,
    best=None,
    dataset="digits",
    partition="iid",
    preset="quick",
    device="cpu",
    hyperparameters=None,
    training=None,
    fingerprint=None,
    scenario=None,
    numbers=NUMBERS_VERSION,
    status="done",
    started="2026-01-01T00:00:00+00:00",
    ended="2026-01-01T00:01:00+00:00",
    diverged=None,
    changed=(),
    label=None,
    version=1,
    code=None,
    drawn=False,
) -> Path:
    """One run: `accuracy` in the last ten rounds, `best` (or the same) in the first.

    Its scenario is invented, or the real one on digits if `drawn`. Its hyper-parameters are those of the
    preset unless given. The losses are not finite from the round `diverged` on. `code` has the digests of the
    code by kind, unknown if not given.
    """
    named = preset_of(preset).name
    protocol = preset_of(preset).training(dataset, **(training or {}))
    values = hyperparameters_of(method, dataset, preset) if hyperparameters is None else hyperparameters
    config = RunConfig(
        method, dataset, partition, setting, named, seed, device, protocol, {**values}, scenario, version
    )
    best = accuracy if best is None else best
    summary, text = rounds_of(protocol.rounds, best, accuracy, diverged)
    names = f"{dataset}{partition}{setting}{seed}"
    invented = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
    facts = ScenarioFacts(fingerprint or invented, protocol.clients, 1437, 0.7)
    if drawn and dataset == "digits" and not fingerprint:
        real = drawn_on_digits(partition, setting, protocol.clients, seed, protocol.samples)
        facts = ScenarioFacts(real.fingerprint, protocol.clients, sum(real.sizes), real.overall)
    record = RunRecord(
        status=status,
        config=config,
        changed=dict(changed),
        label=label,
        scenario=facts,
        provenance={**provenance(numbers), "code": code or {}},
        started=started,
        summary=summary if status == "done" else None,
        ended=ended if status == "done" else None,
    )
    folder = RunFolder(out / config.place)
    if numbers != NUMBERS_VERSION:  # another version of the package makes another hash
        folder = RunFolder(folder.path.with_name(f"{folder.path.name[:-16]}{numbers:016x}"))
    folder.create()
    folder.rounds_file.write_text(text)
    folder.write(record)
    return folder.path


@functools.cache  # the tests write thousands of runs
def rounds_of(count: int, best: float, accuracy: float, diverged: int | None) -> tuple[Summary, str]:
    """The summary and the rounds of a run, as text."""
    rows = [round_row(n, best if n == 0 and count > 10 else accuracy) for n in range(count)]
    for row in rows[count if diverged is None else diverged :]:
        row |= {"loss": None, "train_loss": None}
    return summarise(rows), rounds_text(rows)


def with_rounds(path: Path, rows: list[dict]) -> None:
    """Give a run other rounds, and the summary of them if it has one."""
    folder = RunFolder(path)
    record = folder.read()
    folder.rewrite_rounds(rows)
    folder.write(dataclasses.replace(record, summary=record.summary and summarise(rows)))


@functools.cache
def drawn_on_digits(partition="iid", setting="sym-1.0", clients=35, seed=1, samples=None) -> Scenario:
    """The scenario of these names on digits."""
    return generate(digits(), partition, setting, clients, seed, samples)


@functools.cache
def digits() -> Dataset:
    return load_dataset("digits")


@functools.cache
def hyperparameters_of(method: str, dataset: str, preset: str) -> dict:
    """What the preset gives to a method; nothing for one that is not installed."""
    registry = default_methods()
    if method not in registry.names():
        return {}
    base = registry.method_class(method).name
    return values_of(registry.make(method, preset_of(preset).hyperparameters(dataset, base), {}))


def round_row(number: int, accuracy: float) -> dict:
    """A line of rounds.jsonl."""
    costs = {"bytes_down": 100, "bytes_up": 100, "forward": 10, "backward": 10, "seconds": 0.5}
    return {
        "round": number,
        "accuracy": accuracy,
        "loss": 1.0,
        "train_loss": 1.0,
        "clients": [0, 1],
        **costs,
        "counts": {
            "samples": 100,
            "mixtures": 0,
            "searches": 0,
            "sent": {"n_k": {"per": "client", "messages": 2, "units": 2, "numbers": 2, "bytes": 16}},
        },
        "method": {},
        "diagnostics": {"memorised": 10.0, "accuracy_clean": 60.0, "accuracy_wrong": 40.0},
    }


def provenance(numbers: int = NUMBERS_VERSION) -> dict:
    """What a machine says about itself."""
    return {
        "flnl_bench": "0.1.0",
        "numbers": numbers,
        "commit": None,
        "python": "3.12.1",
        "platform": "Linux",
        "libraries": {"torch": "2.6.0"},
        "device": "cpu",
        "threads": 1,
    }


def write_grid(out: Path, accuracies: dict[str, dict[str, tuple[float, ...]]], seeds=SEEDS, **more) -> None:
    """Runs of method × setting × seed; the accuracies of a cell are those of its seeds."""
    for method, settings in accuracies.items():
        for setting, values in settings.items():
            for seed, accuracy in zip(seeds, values, strict=False):
                write_run(out, method, setting, seed, accuracy, **more)
