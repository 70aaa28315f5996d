"""The observables by which a world (preset and data) is judged: are hard classes apart from wrong labels?

A sieve keeps the labels with a small loss. If the losses of the classes differ as much as those of right and
wrong labels, a sieve loses the hard classes, and a comparison of methods measures the world. The observables
need FedAvg and its control alone, and only the rounds of a warm-up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flnl_bench.atomic_files import finite, json_text, make_writable, replace_file
from flnl_bench.config import NUMBERS_VERSION, check_seeds
from flnl_bench.data import LoadProgress
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput, require
from flnl_bench.running.api import prepare_seeds
from flnl_bench.running.runner import Runner

if TYPE_CHECKING:
    import pandas as pd

WORLD_CONTROL = "fedavg/strong"  # trains on strong views, as most methods do, and knows no other defence
WATCHED_METHODS = ("fedavg", WORLD_CONTROL)
WATCHED_SETTINGS = ("clean", "mixed-1.0")
WARMUP = 0.2  # share of the rounds: the warm-up of most methods
MOST_SPREAD = 0.5  # of the gap: a spread of 0.42 kept all classes, of 0.89 lost some
OBSERVABLES = ("accuracy", "right_fitted", "wrong_memorised", "spread", "gap", "hardest")
ROW_NAMES = ("dataset", "partition", "setting", "method", "seed", "rounds")
Observed = dict[str, Any]
WorldCallback = Callable[[str, int, int], None]  # called with the training, the finished and all rounds


def observables(logits: np.ndarray, given: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """Return the observables of a model on training images.

    Args:
        logits: of the images, [N, C].
        given: their labels, wrong ones included.
        true: their true labels.
    """
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(given)), given]
    predicted, right = logits.argmax(1) == given, given == true
    per_class = {int(c): float(losses[right & (given == c)].mean()) for c in np.unique(given[right])}
    ranked = sorted(per_class.values())
    noisy = bool((~right).any())
    return {
        "right_fitted": 100.0 * float(predicted[right].mean()),
        "wrong_memorised": 100.0 * float(predicted[~right].mean()) if noisy else None,
        "spread": ranked[-1] - ranked[(len(ranked) - 1) // 2],  # of ten classes: the fifth lowest
        "gap": float(losses[~right].mean() - losses[right].mean()) if noisy else None,
        "hardest": max(per_class, key=lambda c: per_class[c]),
    }


@dataclass(frozen=True)
class WorldVerdict:
    """The judgement of one partition, by the control."""

    partition: str
    rounds: int
    spread: float  # the largest of all settings and seeds
    gap: float  # the smallest of all settings and seeds

    @property
    def holds(self) -> bool:
        """Whether the spread is well below the gap."""
        return self.spread <= MOST_SPREAD * self.gap

    def __str__(self) -> str:
        answer = "well below" if self.holds else "not well below, so a sieve may lose classes"
        return (
            f"{self.partition}, after {self.rounds} rounds: the control's class losses spread over "
            f"{self.spread:.2f}, wrong and right labels are {self.gap:.2f} apart: {answer} (limit: half)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**dataclasses.asdict(self), "holds": self.holds}


@dataclass(frozen=True, repr=False)
class WorldObservation:
    """The observables of all trainings, one row per training and measured round."""

    rows: Sequence[Observed]

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a frame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=[*ROW_NAMES, *OBSERVABLES])

    @property
    def verdicts(self) -> list[WorldVerdict]:
        """One per partition and measured round, where the control has a setting with wrong labels."""
        rows = [row for row in self.rows if row["method"] == WORLD_CONTROL]
        verdicts = []
        for partition, rounds in dict.fromkeys((row["partition"], row["rounds"]) for row in rows):
            judged = [row for row in rows if (row["partition"], row["rounds"]) == (partition, rounds)]
            gaps = [row["gap"] for row in judged if row["gap"] is not None]
            if gaps:
                verdicts.append(WorldVerdict(partition, rounds, max(r["spread"] for r in judged), min(gaps)))
        return verdicts

    def __repr__(self) -> str:
        return "\n".join(str(verdict) for verdict in self.verdicts)


def observe_world(
    preset: str = "quick",
    *,
    partition: str | Sequence[str] = "iid",
    setting: str | Sequence[str] = WATCHED_SETTINGS,
    seeds: Iterable[int] = (7, 8),
    after: int | Sequence[int] | None = None,
    out: str | PathLike[str] = "results/observations/world",
    fresh: bool = False,
    progress: WorldCallback | None = None,
    loading: LoadProgress | None = None,
    **options: Any,
) -> WorldObservation:
    """Measure with FedAvg and its control whether a world lets methods tell hard classes from wrong labels.

    Args:
        preset: "quick", "medium", "paper" or a TOML file.
        partition: one or several.
        setting: one or several; one without and one with wrong labels are needed for a verdict.
        seeds: of all draws; choose others than those of your comparison.
        after: measure after so many rounds, one number or several; by default at the end of the warm-up, a
            fifth of all rounds. Later rounds are not trained.
        out: the folder of the results, one JSON file per training; a finished one is not trained again.
        fresh: train finished ones again.
        progress: called as (training, round, rounds) after each round.
        loading: called as (what, done, total) while a large data set is decoded.
        options: any other option of `fb.run` that is one of the data, the protocol or the devices.
    """
    partitions, settings = _listed("partition", partition), _listed("setting", setting)
    folder, seeds = Path(out).expanduser(), check_seeds(seeds)
    runners: list[Runner] = []
    for p, s, method in itertools.product(partitions, settings, WATCHED_METHODS):
        asked = {**options, "preset": preset, "partition": p, "setting": s, "method": method}
        runners += prepare_seeds(seeds, asked, loading=loading)
    for runner in runners:  # before the first one trains
        _moments(after, runner.config.training.rounds)
        if not runner.scenario.truth_known:
            raise BadInput(f"the true labels of {runner.config.dataset} are not known")
    rows = [_measured(runner, after, folder, fresh, progress or (lambda *_: None)) for runner in runners]
    return WorldObservation(list(itertools.chain.from_iterable(rows)))


def _listed(name: str, values: str | Sequence[str]) -> list[str]:
    listed = [values] if isinstance(values, str) else list(values)
    require(bool(listed), name, "empty", "one name or several")
    return listed


def _moments(after: int | Sequence[int] | None, rounds: int) -> list[int]:
    """Return after how many rounds to measure, in order."""
    asked = [max(1, round(WARMUP * rounds))] if after is None else after
    listed = [asked] if isinstance(asked, int) else sorted({*asked})
    fits = bool(listed) and all(type(moment) is int and 1 <= moment <= rounds for moment in listed)
    require(fits, "after", asked, f"whole numbers from 1 to {rounds}, the rounds of the preset")
    return listed


def _measured(
    runner: Runner, after: int | Sequence[int] | None, folder: Path, fresh: bool, report: WorldCallback
) -> list[Observed]:
    """Return the rows of one training, read from its file or trained."""
    config = runner.config
    moments = _moments(after, config.training.rounds)
    words = f"{config.dataset}-{config.partition}-{config.setting}-{config.method}"
    name = f"{re.sub(r'[^A-Za-z0-9.,=+-]', '_', words)[:100]}-s{config.seed}-{config.hash}.json"
    known = {} if fresh else _read(folder / name)
    if not {*moments} <= known.keys():
        make_writable(folder)  # before the training
        for row in _train(runner, moments, report):
            known[row["rounds"]] = row  # kept even if a later round is interrupted
            content = {"config": config.as_dict(), "numbers": NUMBERS_VERSION, "rows": list(known.values())}
            replace_file(folder / name, json_text(content) + "\n")
    return [known[moment] for moment in moments]


def _train(runner: Runner, moments: Sequence[int], report: WorldCallback) -> Iterator[Observed]:
    config, scenario = runner.config, runner.scenario
    everything = np.concatenate(scenario.clients)
    names = {name: config.names[name] for name in ROW_NAMES if name != "rounds"}
    engine = Engine(runner.method, runner.dataset, scenario, config.training, config.seed, runner.devices)
    with contextlib.closing(engine):
        while engine.round < moments[-1]:
            accuracy = engine.run_round().accuracy
            report(config.title, engine.round, moments[-1])
            if engine.round in moments:
                logits = engine.executor.logits(engine.server.weights, "train", everything).cpu().numpy()
                seen = observables(logits, scenario.given[everything], scenario.true[everything])
                yield finite({**names, "rounds": engine.round, "accuracy": accuracy, **seen})


def _read(path: Path) -> dict[int, Observed]:
    """Read the rows of a finished training by their rounds; none if there is no complete file."""
    try:
        rows: list[Mapping[str, Any]] = json.loads(path.read_bytes())["rows"]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return {row["rounds"]: dict(row) for row in rows}
