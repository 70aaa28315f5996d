"""The cases of an experiment, from a preset and the user's options; a case is a `RunConfig`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flnl_bench.config import TRAINING_FIELDS, RunConfig, check_seeds, training_changes
from flnl_bench.data import dataset_name
from flnl_bench.errors import BadInput, require, unknown
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import protocol
from flnl_bench.scenario import parse_partition, parse_setting

VARIED = ("partition", "setting", "clients", "fraction", "epochs")  # options that may have several values

# Grids of cases. Options change the first one; the paper does not give the fraction of its second one.
_QUICK = {
    "dataset": "digits",
    "partition": ["iid", "dir-0.3"],
    "setting": ["sym-0.6:0.2-0.4"],
    "clients": [10],
    "fraction": [0.5],
    "epochs": [10],
    "training": {"rounds": 60, "batch_size": 16, "lr": 0.1},
}
_PAPER = {**_QUICK, "dataset": "cifar10", "training": {"rounds": 200}}
_HIGH_NOISE = {"setting": ["sym-1.0:0.5-0.5", "sym-1.0:0.8-0.8"], "clients": [20, 100], "fraction": [0.2]}
GRIDS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "quick": [_QUICK],
    "paper": [{**_PAPER, "fraction": [0.2, 0.5, 1.0], "epochs": [1, 10]}, {**_PAPER, **_HIGH_NOISE}],
}


def make_cases(preset: str, seeds: Iterable[int], options: Mapping[str, Any], device: str) -> list[RunConfig]:
    """Return every combination of the values of a preset's grids, with the user's options in their place.

    Args:
        preset: a name in GRIDS; if an option that may have several values is given, only its first grid.
        seeds: of the cases.
        options: the user's options; None stands for the value of the preset.
        device: the kind of device.
    """
    if preset not in GRIDS:
        raise unknown("preset", preset, GRIDS)
    for name in options.keys() - {"dataset", *VARIED, *TRAINING_FIELDS}:
        raise unknown("option", name, {"dataset", *VARIED, *TRAINING_FIELDS})
    given = {name: value for name, value in options.items() if value is not None}
    grids = GRIDS[preset][:1] if given.keys() & {*VARIED} else GRIDS[preset]
    cases = (_cases(preset, grid, given, seed, device) for seed in check_seeds(seeds) for grid in grids)
    return list(itertools.chain.from_iterable(cases))


def _cases(
    preset: str, grid: Mapping[str, Any], given: Mapping[str, Any], seed: int, device: str
) -> list[RunConfig]:
    dataset = dataset_name(given.get("dataset", grid["dataset"]))
    fixed = {name: value for name, value in given.items() if name in TRAINING_FIELDS and name not in VARIED}
    changes = {**grid["training"], **fixed}
    cases = []
    for values in itertools.product(*(_as_list(name, given.get(name, grid[name])) for name in VARIED)):
        chosen = dict(zip(VARIED, values, strict=True))
        partition, setting = parse_partition(chosen.pop("partition")), parse_setting(chosen.pop("setting"))
        if setting.expected_ratio == 0:
            raise BadInput(f"setting {setting.name!r} has no wrong labels that could be memorised")
        training = protocol(load_preset(preset), dataset, training_changes({**changes, **chosen}))
        names = (dataset, partition.name, setting.name, preset)
        cases.append(RunConfig("averaging", *names, seed, device, training))
    return cases


def _as_list(name: str, values: Any) -> list[Any]:
    listed = [values] if isinstance(values, str | int | float) else list(values)
    require(bool(listed), name, "empty", "one value or several")
    return listed


def case_values(case: RunConfig) -> dict[str, Any]:
    """Return the data set, the varied values and the seed of a case."""
    values = {**vars(case.training), **case.names}
    return {name: values[name] for name in ("dataset", *VARIED, "seed")}


def case_title(case: RunConfig) -> str:
    """Describe a case in one line."""
    t = case.training
    protocol = f"{t.sampled_clients} of {t.clients} clients per round, {t.epochs} epochs"
    return f"{case.dataset} · {case.partition} · {case.setting} · {protocol} · seed {case.seed}"


def case_file(case: RunConfig, every: int) -> str:
    """Return the name of a case's file, with a hash of everything that changes a number."""
    words = f"{case.dataset.replace(':', '-')}-{case.partition}-{case.setting}"
    slug = re.sub(r"[^\w.,=+-]", "_", words, flags=re.ASCII)  # data sets and settings may have paths of files
    return f"{slug[:100]}-every{every}-{case.hash}.json"
