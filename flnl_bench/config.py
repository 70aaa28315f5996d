"""The resolved configuration of a run: every value that changes a number, and their hash."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import numbers
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from flnl_bench.atomic_files import path_part
from flnl_bench.errors import BadInput, require, unknown

# Increased when a change of this package gives other numbers for the same configuration.
NUMBERS_VERSION = 2

PRECISIONS = ("float32", "tf32", "bfloat16")
STATE_PLACES = ("auto", "device", "host", "disk")  # where the states of clients may be kept
COMPILE_MODES = ("off", "default", "cudagraphs")

# Larger numbers are typing errors.
LARGEST_COUNT = {"clients": 1_000_000, "rounds": 10_000_000, "epochs": 100_000, "stack": 1000}


@dataclass(frozen=True)
class Training:
    """The training protocol, which does not depend on the method."""

    model: str
    clients: int
    fraction: float
    rounds: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    samples: int | None = None  # size of a random subset of the train images
    test_samples: int | None = None  # size of a random subset of the test images, the same for every seed
    norm: str = "batch"
    pretrained: bool = False
    precision: str = "float32"  # of the networks; tf32 only matters on CUDA, bfloat16 is autocast
    compile: str = "off"  # default: torch.compile of the networks; cudagraphs: steps as CUDA graphs
    drop: float = 0.0  # chance of a sampled client not to answer in a round
    stack: int = 1  # clients that train together as one network; 1: one after the other

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "epochs", "batch_size", "samples", "test_samples", "stack"):
            value, most = getattr(self, name), LARGEST_COUNT.get(name, 2**31)
            fits = 1 <= value <= most if value is not None else "samples" in name
            require(fits, name, value, f"a whole number from 1 to {most}")
        require(0 < self.fraction <= 1, "fraction", self.fraction, "above 0 and at most 1")
        require(0 <= self.drop < 1, "drop", self.drop, "at least 0 and below 1")
        require(0 < self.lr < math.inf, "lr", self.lr, "a number above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "a number from 0")
        for name, known in (("precision", PRECISIONS), ("compile", COMPILE_MODES)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if self.stack > 1 and self.compile != "off":
            raise BadInput(f"stack {self.stack} needs compile off, not {self.compile}")

    @property
    def sampled_clients(self) -> int:
        """m, the number of clients per round."""
        return sampled_clients(self.fraction, self.clients)


def sampled_clients(fraction: float, clients: int) -> int:
    """m, the number of clients per round."""
    return max(1, int(fraction * clients + 1e-9))


RUN_NAMES = ("method", "dataset", "partition", "setting", "preset", "seed")  # of a run, for people
TRAINING_FIELDS = tuple(part.name for part in dataclasses.fields(Training))


@functools.cache  # a suite asks thousands of times
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Training)


def training_changes(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Convert changes of a protocol to the types that Training declares; errors name the place `where`."""
    hints, changes = _hints(), {}
    for name, value in values.items():
        kinds = typing.get_args(hints[name]) or (hints[name],)
        value = plain_value(value)
        if type(value) is int and float in kinds and abs(value) < 2**53:
            value = float(value)  # lr=1 and lr=1.0 are the same run
        if type(value) not in kinds:
            raise BadInput(f"{where}{name} must be of type {kinds[0].__name__}, not {value!r}")
        changes[name] = value
    return changes


@dataclass(frozen=True)
class RunConfig:
    """The resolved configuration of one run; its hash names the run's folder."""

    method: str  # the name of the method or of its variant, e.g. "fedgr/no-sieve"
    dataset: str
    partition: str
    setting: str
    preset: str
    seed: int
    device: str  # "cpu", "cuda" or "mps": numbers are equal on one kind of device only
    training: Training
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)  # complete, resolved
    scenario: str | None = None  # fingerprint of an imported scenario, if it was not generated
    version: int = 1  # of the method's numbers

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.training.compile == "cudagraphs" and self.device != "cuda":
            raise BadInput(f"compile cudagraphs needs --device cuda, not {self.device}")
        for name in ("method", "partition", "preset"):
            for part in getattr(self, name).split("/" if name == "method" else "\0"):
                path_part(part, name)
        path_part(self.setting.partition(",")[0], "setting")
        path_part(self._setting_folder, "setting")
        path_part(self._data_folder, "dataset")
        for name in ("dataset", "setting"):
            require("/" not in getattr(self, name), name, getattr(self, name), "a name without a path")

    @property
    def place(self) -> PurePath:
        """Path of the run's folder below a results folder."""
        name = f"{self.preset}-s{self.seed}-{self.hash}"
        return PurePath(self._data_folder, self.partition, self._setting_folder, self.method, name)

    @property
    def _data_folder(self) -> str:
        """The data set as the name of a folder."""
        return _as_folder(self.dataset.replace(":", "-"))

    @property
    def _setting_folder(self) -> str:
        """The setting as the name of a folder."""
        return _as_folder(self.setting.replace(":", "_"))[:100]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and the hash."""
        values = {name: getattr(self, name) for name in _CONFIG_FIELDS}
        training = {**vars(self.training)}
        if self.training.stack == 1:  # runs that are older than this field keep their hash
            del training["stack"]
        return {**values, "training": training, "hyperparameters": {**self.hyperparameters}}

    def flat(self) -> dict[str, Any]:
        """Return plain values without nesting: `method`, `training.lr`, `hyperparameters.mu`, …"""
        values = self.as_dict() | {"training": vars(self.training)}
        for part in ("training", "hyperparameters"):
            values |= {f"{part}.{name}": value for name, value in values.pop(part).items()}
        return values

    @property
    def names(self) -> dict[str, Any]:
        """The values that identify the run for people."""
        return {name: getattr(self, name) for name in RUN_NAMES}

    @property
    def title(self) -> str:
        """The run in one line."""
        scenario = f"{self.dataset} · {self.partition} · {self.setting}"
        return f"{self.method} on {scenario} · {self.preset} · seed {self.seed}"

    @functools.cached_property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over everything that changes the numbers."""
        text = json.dumps({**self.as_dict(), "numbers": NUMBERS_VERSION}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_CONFIG_FIELDS = tuple(part.name for part in dataclasses.fields(RunConfig))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of every name whose values differ; a missing value is None."""
    names = dict.fromkeys([*a, *b])
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


# -- seeds -------------------------------------------------------------------------------------------
def check_seed(seed: Any) -> int:
    """Return a seed as a Python integer; refuse other values."""
    seed = plain_value(seed)
    fits = type(seed) is int and 0 <= seed < 2**63
    require(fits, "seed", repr(seed), "a whole number from 0 to 2^63 - 1")
    return int(seed)


def check_seeds(seeds: Any) -> list[int]:
    """Return seeds as Python integers; refuse an empty list and repeated seeds."""
    is_list = isinstance(seeds, Iterable) and not isinstance(seeds, str) and getattr(seeds, "ndim", 1) > 0
    checked = [check_seed(seed) for seed in seeds] if is_list else []
    fits = 0 < len(checked) == len({*checked})
    given = checked if is_list else seeds
    require(fits, "seeds", repr(given), "a list of whole numbers, none of them twice")
    return checked


@functools.lru_cache  # thousands of records have few different names
def _as_folder(name: str) -> str:
    return "".join(char if char.isprintable() and char not in "/\\" else "_" for char in name)


def key_of(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return a key that is equal for equal values, also for 1 and 1.0."""
    return tuple(sorted((name, repr(int_if_integral(value))) for name, value in values.items()))


def int_if_integral(value: object) -> object:
    """Convert a float without a fraction to an integer, so that 1.0 reads and compares as 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def written(values: Mapping[str, Any]) -> str:
    """Write values for people, as for --set."""
    return ", ".join(f"{name}={int_if_integral(value)}" for name, value in values.items())


def as_set(value: object, where: str) -> str:
    """Write a hyper-parameter as for --set; errors name the place `where`."""
    value = plain_value(value)
    if not (value is None or isinstance(value, str | numbers.Real)):
        raise BadInput(f"{where} must be a number, a text, true or false")
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def plain_value(value: Any) -> Any:
    """Convert a NumPy scalar to a Python value."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
