"""One run, completely described: nothing that changes a number is left out."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import numbers
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from flnl_bench.atomic_files import path_part
from flnl_bench.errors import BadInput, require, unknown

# Raised whenever a change makes the same configuration give other numbers.
NUMBERS_VERSION = 1

PRECISIONS = ("float32", "tf32", "bfloat16")
COMPILE_MODES = {"off": None, "default": "default", "cudagraphs": "reduce-overhead"}  # as torch calls them

MOST = {"clients": 1_000_000, "rounds": 10_000_000, "epochs": 100_000}  # beyond this lies a slip of the pen


def later(default: Any) -> Any:
    """A field that came when runs were kept already: the hash leaves it out while it has its default."""
    return field(default=default, metadata={"later": True})


@dataclass(frozen=True)
class Training:
    """How the federation trains, whatever the method; a new field is declared with `later`."""

    model: str
    clients: int
    fraction: float
    rounds: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    samples: int | None = None  # train on a random subset of so many images
    test_samples: int | None = None  # test on a random subset, the same for every seed
    norm: str = "batch"
    pretrained: bool = False
    precision: str = later("float32")  # of the networks; tf32 only matters on CUDA, bfloat16 is autocast
    compile: str = later("off")  # torch.compile of the networks that train; cudagraphs: reduce-overhead

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "epochs", "batch_size", "samples", "test_samples"):
            value, most = getattr(self, name), MOST.get(name, 2**31)
            fits = 1 <= value <= most if value is not None else "samples" in name
            require(fits, name, value, f"a whole number from 1 to {most}")
        require(0 < self.fraction <= 1, "fraction", self.fraction, "above 0 and at most 1")
        require(0 < self.lr < math.inf, "lr", self.lr, "a number above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "a number from 0")
        for name, known in (("precision", PRECISIONS), ("compile", COMPILE_MODES)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)


def sampled_clients(fraction: float, clients: int) -> int:
    """m, the number of clients in a round."""
    return max(1, int(fraction * clients + 1e-9))


NAMES = ("method", "dataset", "partition", "setting", "preset", "seed")  # of a run, for people
TRAINING = tuple(part.name for part in dataclasses.fields(Training))


@functools.cache  # a suite asks thousands of times
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Training)


def training_changes(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Changes of a protocol, each of the type that Training declares; errors say `where` they are."""
    hints, changes = _hints(), {}
    for name, value in values.items():
        kinds = typing.get_args(hints[name]) or (hints[name],)
        value = plain(value)
        if type(value) is int and float in kinds and abs(value) < 2**53:
            value = float(value)  # the same run, whichever way it is written
        if type(value) not in kinds:
            raise BadInput(f"{where}{name} must be of type {kinds[0].__name__}, not {value!r}")
        changes[name] = value
    return changes


@dataclass(frozen=True)
class RunConfig:
    """What a run is asked to do; a new field is declared with `later`."""

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
    version: int = later(1)  # of the method's numbers

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "seed", self.seed, "a whole number from 0 to 2^63 - 1")
        for name in ("method", "partition", "preset"):
            for part in getattr(self, name).split("/" if name == "method" else "\0"):
                path_part(part, name)
        path_part(self.setting.partition(",")[0], "setting")
        path_part(self._setting_folder, "setting")
        path_part(self._data_folder, "dataset")

    @property
    def place(self) -> PurePath:
        """Where its folder is below a results folder; the hash keeps apart whatever gives other numbers."""
        name = f"{self.preset}-s{self.seed}-{self.hash}"
        return PurePath(self._data_folder, self.partition, self._setting_folder, self.method, name)

    @property
    def _data_folder(self) -> str:
        """The data set, whose name may have the path of a file, as the name of a folder."""
        return _as_folder(self.dataset.replace(":", "-"))

    @property
    def _setting_folder(self) -> str:
        """The setting, whose options may have paths of files, as the name of a folder."""
        return _as_folder(self.setting.replace(":", "_"))[:100]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @property
    def names(self) -> dict[str, Any]:
        """What people call it by."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def hash(self) -> str:
        """Eight hex digits over everything that changes the numbers."""
        return next(self.hashes(NUMBERS_VERSION))

    def hashes(self, numbers: int) -> Iterator[str]:
        """The hash in the version whose NUMBERS_VERSION this is, and in those before some fields existed.

        A field that such a version did not know has its default.
        """
        values = {**self.as_dict(), "numbers": numbers}
        by_default = [
            (hashed, one)
            for part, hashed in ((self, values), (self.training, values["training"]))
            for one in dataclasses.fields(part)
            if one.default is not dataclasses.MISSING and hashed[one.name] == one.default
        ]
        for hashed, one in by_default:
            if one.metadata.get("later"):
                del hashed[one.name]
        optional = [(hashed, one.name) for hashed, one in by_default if one.name in hashed]
        for count in range(len(optional) + 1):
            for missing in itertools.combinations(optional, count):
                taken = [(hashed, name, hashed.pop(name)) for hashed, name in missing]
                text = json.dumps(values, sort_keys=True)
                yield hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
                for hashed, name, value in taken:
                    hashed[name] = value


def _as_folder(name: str) -> str:
    return "".join(sign if sign.isprintable() and sign not in "/\\" else "_" for sign in name)


def key_of(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Values as a key: equal if they mean the same, so 1 is 1.0."""
    return tuple(sorted((name, repr(int_if_integral(value))) for name, value in values.items()))


def int_if_integral(value: object) -> object:
    """A float without a fraction as an integer, so that 1.0 reads and compares as 1; else the value."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def written(values: Mapping[str, Any]) -> str:
    """Values for people, as they would be given to --set."""
    return ", ".join(f"{name}={int_if_integral(value)}" for name, value in values.items())


def as_set(value: object, where: str) -> str:
    """A hyper-parameter as it would be given to --set; errors say `where` it is."""
    value = plain(value)
    if not (value is None or isinstance(value, str | numbers.Real)):
        raise BadInput(f"{where} must be a number, a text, true or false")
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def plain(value: Any) -> Any:
    """A NumPy value, as of a loop over an array, as a value of Python."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
