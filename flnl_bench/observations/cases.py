"""What is observed: the cases of an experiment, from a preset and what the user changes about it."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flnl_bench.config import NUMBERS_VERSION, TRAINING, Training, training_changes
from flnl_bench.data import dataset_name
from flnl_bench.errors import BadInput, require, unknown
from flnl_bench.running.api import check_seed
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import protocol
from flnl_bench.scenario import parse_partition, parse_setting

AXES = ("partition", "setting", "clients", "fraction", "epochs")

# Grids of cases. The first is what options change; the paper does not say how its second one samples.
PRESETS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "quick": [
        {
            "dataset": "digits",
            "partition": ["iid", "dir-0.3"],
            "setting": ["sym-0.6:0.2-0.4"],
            "clients": [10],
            "fraction": [0.5],
            "epochs": [10],
            "training": {"rounds": 60, "batch_size": 16, "lr": 0.1},
        }
    ],
    "paper": [
        {
            "dataset": "cifar10",
            "partition": ["iid", "dir-0.3"],
            "setting": ["sym-0.6:0.2-0.4"],
            "clients": [10],
            "fraction": [0.2, 0.5, 1.0],
            "epochs": [1, 10],
            "training": {"rounds": 200},
        },
        {
            "dataset": "cifar10",
            "partition": ["iid", "dir-0.3"],
            "setting": ["sym-1.0:0.5-0.5", "sym-1.0:0.8-0.8"],
            "clients": [20, 100],
            "fraction": [0.2],
            "epochs": [10],
            "training": {"rounds": 200},
        },
    ],
}


@dataclass(frozen=True)
class Case:
    """One federation and the protocol under which it is watched."""

    dataset: str
    partition: str
    setting: str
    seed: int
    training: Training

    @property
    def axes(self) -> dict[str, Any]:
        """The values that an experiment varies, and the seed."""
        values = {**asdict(self.training), "partition": self.partition, "setting": self.setting}
        return {"dataset": self.dataset, **{name: values[name] for name in AXES}, "seed": self.seed}

    @property
    def name(self) -> str:
        """In a few words."""
        t = self.training
        return (
            f"{self.dataset} · {self.partition} · {self.setting} · {t.clients} clients, "
            f"{t.fraction:g} a round, {t.epochs} epochs · seed {self.seed}"
        )

    def file(self, device: str, every: int) -> str:
        """The name of its file; the digits are over everything that changes a number."""
        values = {**asdict(self), "device": device, "every": every, "numbers": NUMBERS_VERSION}
        digest = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=4).hexdigest()
        words = f"{self.dataset.replace(':', '-')}-{self.partition}-{self.setting}"
        slug = re.sub(r"[^\w.,=+-]", "_", words, flags=re.ASCII)  # paths of files are in it
        return f"{slug[:100]}-{digest}.json"


def make_cases(preset: str, seeds: Iterable[int], asked: Mapping[str, Any]) -> list[Case]:
    """Every combination; what is asked for is in all of them, and of several grids only the first is left."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    for name in asked.keys() - {"dataset", *AXES, *TRAINING}:
        raise unknown("option", name, {"dataset", *AXES, *TRAINING})
    given = {name: value for name, value in asked.items() if value is not None}
    grids = PRESETS[preset][:1] if given.keys() & {*AXES} else PRESETS[preset]
    return [
        case
        for seed in map(check_seed, seeds)
        for grid in grids
        for case in _cases(preset, grid, given, seed)
    ]


def _cases(preset: str, grid: Mapping[str, Any], given: Mapping[str, Any], seed: int) -> list[Case]:
    dataset = dataset_name(given.get("dataset", grid["dataset"]))
    changes = {**grid["training"], **{k: v for k, v in given.items() if k in TRAINING and k not in AXES}}
    cases = []
    for values in itertools.product(*(_several(name, given.get(name, grid[name])) for name in AXES)):
        chosen = dict(zip(AXES, values, strict=True))
        split = parse_partition(chosen.pop("partition")).name
        noise = parse_setting(chosen.pop("setting"))
        if noise.expected_ratio == 0:
            raise BadInput(f"setting {noise.name!r} has no wrong labels that could be memorised")
        training = protocol(load_preset(preset), dataset, training_changes({**changes, **chosen}))
        cases.append(Case(dataset, split, noise.name, seed, training))
    return cases


def _several(name: str, values: Any) -> list[Any]:
    listed = [values] if isinstance(values, str | int | float) else list(values)
    require(bool(listed), name, "empty", "one value or several")
    return listed
