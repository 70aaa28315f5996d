"""The options of a run: one dataclass for the command line, run files, suite entries and Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from flnl_bench.config import STATE_PLACES, TRAINING_FIELDS, as_set, check_seed, plain_value, training_changes
from flnl_bench.errors import BadInput, require, unknown

AnyPath = str | PathLike[str]  # a file or folder

NAME_OPTIONS = ("method", "setting", "dataset", "partition", "preset", "device")
PATH_OPTIONS = ("scenario", "data_dir", "out")
SCENARIO_OPTIONS = ("setting", "dataset", "partition", "clients", "samples")


@dataclass(frozen=True)
class RunOptions:
    """The options of one run; other values come from the preset."""

    method: str
    setting: str = "sym-1.0"
    dataset: str = "digits"
    partition: str = "iid"
    preset: str = "quick"
    seed: int = 1
    training: Mapping[str, Any] = field(default_factory=dict)  # changes of the protocol, e.g. rounds
    changes: Mapping[str, str] = field(default_factory=dict)  # changes of hyper-parameters, as text
    scenario: Path | None = None  # an exported scenario, instead of setting, dataset, partition, …
    label: str | None = None  # the suite's name for the run; changes no number, as all that follow
    device: str = "auto"
    devices: tuple[str, ...] = ()  # of worker processes, as cuda:0
    workers: int | None = None  # worker processes
    state: str = "auto"  # where the states of clients are kept, one of STATE_PLACES
    data_dir: Path | None = None
    out: Path = Path("results/runs")
    tracker: tuple[str, ...] = ()
    save_model: bool = False  # keep the final and the best global weights
    checkpoint_every: int | str = 1  # rounds, or seconds as "30s"
    keep_checkpoints: int | None = None  # rounds from one checkpoint to the next that stays after the run

    @classmethod
    def of(cls, given: Mapping[str, Any], dashes: str = "") -> RunOptions:
        """Check flat options, as a user gives them; None counts as not given.

        Args:
            given: options by name, also values of the protocol (rounds, lr, …); `set` maps hyper-parameters.
            dashes: "--" for messages to users of the command line.
        """
        values = {name: plain_value(value) for name, value in given.items() if value is not None}
        for name in values.keys() - OPTION_NAMES:
            raise unknown("option", name, OPTION_NAMES)
        require(isinstance(values.get("method"), str), "method", repr(values.get("method")), "a name")
        check_source(values, dashes)
        check_kinds(values)
        for name in values.keys() & {*PATH_OPTIONS}:
            values[name] = as_path(values[name], name)
        if "seed" in values:
            values["seed"] = check_seed(values["seed"])
        changes = {name: as_set(value, f"set {name}") for name, value in values.pop("set", {}).items()}
        training = training_changes({name: values.pop(name) for name in TRAINING_FIELDS if name in values})
        devices = values.pop("devices", ())
        devices = devices.split(",") if isinstance(devices, str) else devices
        trackers = values.pop("tracker", ())
        trackers = (trackers,) if isinstance(trackers, str) else tuple(trackers)
        return cls(**values, devices=tuple(devices), tracker=trackers, changes=changes, training=training)


# The flat names that `RunOptions.of` takes.
OPTION_NAMES = {part.name for part in fields(RunOptions)} - {"training", "changes", "label"} | {
    "set",
    *TRAINING_FIELDS,
}


def check_source(given: Mapping[str, object], dashes: str = "") -> None:
    """Refuse a scenario file together with options that it replaces, and a missing setting."""
    own = [dashes + name for name in SCENARIO_OPTIONS if given.get(name) is not None]
    if given.get("scenario") is not None and own:
        raise BadInput(f"{dashes}scenario fixes the federation: leave out {', '.join(own)}")
    if given.get("scenario") is None and given.get("setting") is None:
        option = f"{dashes}setting"
        raise BadInput(
            f"missing option {option}, as in {option} sym-1.0 (`flnl-bench list settings` shows all)"
        )


def check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse options of a wrong type."""
    for name in given.keys() & {*NAME_OPTIONS}:
        require(isinstance(given[name], str), name, repr(given[name]), "a name")
    for name in given.keys() & {*PATH_OPTIONS}:
        as_path(given[name], name)
    for name in ("workers", "keep_checkpoints"):
        value = given.get(name)
        fits = value is None or (type(value) is int and value >= 1)
        require(fits, name, repr(value), "a whole number from 1")
    require(isinstance(given.get("set", {}), Mapping), "set", repr(given.get("set")), "values by name")
    saved = given.get("save_model", False)
    require(type(saved) is bool, "save_model", repr(saved), "true or false")
    if (place := given.get("state", "auto")) not in STATE_PLACES:
        raise unknown("state", str(place), STATE_PLACES)
    checkpoint_interval(given.get("checkpoint_every", 1))
    for name in given.keys() & {"devices", "tracker"}:
        value = given[name]
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        require(fits, name, repr(value), "a name, or a list of names")


def checkpoint_interval(value: object) -> tuple[int, int]:
    """Return the least numbers of rounds and of seconds between two checkpoints, of 10 or "30s"."""
    match = re.fullmatch(r"0*([1-9]\d{0,8})(s?)", str(value)) if type(value) in (int, str) else None
    if match is None:
        raise BadInput(
            f"checkpoint_every is {value!r}, but must be a number of rounds from 1, or of seconds, as in 30s"
        )
    return (1, int(match[1])) if match[2] else (int(match[1]), 0)


def as_path(path: AnyPath | None, name: str = "data_dir") -> Path | None:
    """Return a path with ~ expanded; refuse a value that is not a path."""
    is_path = path is None or isinstance(path, str | PathLike)
    require(is_path, name, repr(path), "the path of a file or folder")
    return None if path is None else Path(path).expanduser()
