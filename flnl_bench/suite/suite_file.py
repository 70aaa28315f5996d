"""A suite file: the axes of a grid of runs, in TOML, checked when it is read.

The files in `shipped/` are part of this package; their names stand for them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl_bench.config import TRAINING_FIELDS, as_set, check_seeds, training_changes
from flnl_bench.errors import BadInput, unknown
from flnl_bench.input_files import read_toml

GRID_AXES: Mapping[str, list[Any]] = {  # with their defaults
    "presets": ["quick"],
    "datasets": ["digits"],
    "partitions": ["iid"],
    "settings": [],  # must be given, or cells
    "seeds": [1],
}
_CELLS = ("partitions", "settings")
_TABLES = ("training", "set", "ablations", "sweeps", "missing")
_KEYS = ("name", "description", "preset", "methods", "cells", *GRID_AXES, *_TABLES)


@dataclass(frozen=True)
class Variation:
    """A method with changed hyper-parameters: one combination (ablation) or all of several values (sweep)."""

    name: str
    method: str
    values: Mapping[str, tuple[str, ...]]  # hyper-parameter → its values, as text
    sweep: bool


@dataclass(frozen=True)
class Suite:
    """The content of a suite file; `make_grid` checks the names in it."""

    name: str
    description: str
    methods: tuple[str, ...]
    presets: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: tuple[tuple[str, str], ...]  # partition and setting of each
    seeds: tuple[int, ...]
    training: Mapping[str, Any]
    changes: Mapping[str, Mapping[str, str]]  # method → hyper-parameter → value, as text
    variations: tuple[Variation, ...]
    missing: Mapping[str, str]  # rows and columns of a published table that it lacks, with the reasons

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions of its cells."""
        return tuple(dict.fromkeys(partition for partition, _ in self.cells))

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of its cells."""
        return tuple(dict.fromkeys(setting for _, setting in self.cells))


def shipped_suites() -> dict[str, Path]:
    """Return the suite files of this package by their names, in alphabetical order."""
    folder = Path(__file__).parent / "shipped"
    files = sorted(folder.rglob("*.toml"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def read_suite(name: Path) -> Suite:
    """Read and check a suite of this package, by its name, or a suite file; every error names the file."""
    shipped = shipped_suites()
    path = shipped.get(str(name), name)
    try:
        return make_suite(read_toml(path), path.stem)
    except FileNotFoundError:
        if path.suffix == ".toml":
            raise BadInput(f"there is no suite file {path}") from None
        raise BadInput(f"{unknown('suite', str(name), shipped)}; the name of a file ends in .toml") from None
    except BadInput as error:
        message = str(error)
        raise BadInput(message if message.startswith(str(path)) else f"{path}: {message}") from None


def make_suite(table: Mapping[str, Any], name: str = "suite") -> Suite:
    """Check the content of a suite file, as a dictionary; `name` is used if it has none."""
    table = dict(table)
    _check_keys(table, _KEYS)
    for key in ("name", "description", "preset"):
        _require(isinstance(table.get(key, ""), str), key, "a text")
    for key in _TABLES:
        _require(isinstance(table.get(key, {}), dict), key, "a table")
    if "preset" in table:  # short for a list of one
        _require("presets" not in table, "preset", "left out where presets are given")
        table["presets"] = [table["preset"]]
    cells = _cells(table)
    axes = {
        key: _axis(table.get(key, default), key) for key, default in GRID_AXES.items() if key not in _CELLS
    }
    methods = _axis(table["methods"], "methods") if "methods" in table else ()
    training = table.get("training", {})
    _check_keys(training, TRAINING_FIELDS, "[training]")
    variations = (*_variations(table, "ablations"), *_variations(table, "sweeps"))
    _require(bool(methods or variations), "methods", "given, unless there are ablations or sweeps")
    return Suite(
        name=table.get("name", name),
        description=table.get("description", ""),
        methods=methods,
        training=training_changes(training, "training."),
        changes={method: _texts(values, f"set.{method}") for method, values in table.get("set", {}).items()},
        variations=variations,
        missing=_texts(table.get("missing", {}), "missing"),
        cells=cells,
        **axes,
    )


def _cells(table: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the listed cells, or every combination of partitions and settings."""
    if "cells" not in table:
        _require("settings" in table, "settings", "given, unless there are cells")
        return tuple(itertools.product(*(_axis(table.get(key, GRID_AXES[key]), key) for key in _CELLS)))
    for key in table.keys() & {*_CELLS}:
        _require(False, key, "left out where cells are given")
    listed = [cell.split() for cell in _axis(table["cells"], "cells")]
    _require(
        all(len(cell) == 2 for cell in listed),
        "cells",
        'a list of partitions and settings, as in "iid sym-1.0"',
    )
    return tuple((partition, setting) for partition, setting in listed)


def _axis(values: Any, key: str) -> tuple[Any, ...]:
    """Check a list without repetition, of whole numbers for the seeds and of names for the others."""
    if key == "seeds":
        return tuple(check_seeds(values))
    good = isinstance(values, list | tuple) and values and all(isinstance(value, str) for value in values)
    _require(bool(good), key, "a list of names")
    for value, times in Counter(values).items():
        _require(times == 1, key, f"a list without repetition, but {value!r} is there twice")
    return tuple(values)


def _variations(table: Mapping[str, Any], key: str) -> list[Variation]:
    """Check the named tables of ablations or sweeps: `method` and `set`; only sweeps may list values."""
    variations = []
    for name, values in table.get(key, {}).items():
        where = f"{key}.{name}"
        _require(isinstance(values, dict), where, "a table")
        _check_keys(values, ("method", "set"), where)
        _require(isinstance(values.get("method"), str), f"{where}.method", "the name of a method")
        _require(isinstance(values.get("set"), dict) and values["set"], f"{where}.set", "a table of values")
        lists: dict[str, tuple[str, ...]]
        if key == "ablations":
            lists = {name: (text,) for name, text in _texts(values["set"], f"{where}.set").items()}
        else:
            lists = {name: _listed(value, f"{where}.set.{name}") for name, value in values["set"].items()}
        variations.append(Variation(name, values["method"], lists, key == "sweeps"))
    return variations


def _listed(value: Any, where: str) -> tuple[str, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    _require(len(values) > 0, where, "a value or a list of values")
    return tuple(as_set(item, where) for item in values)


def _texts(values: Any, where: str) -> dict[str, str]:
    _require(isinstance(values, dict), where, "a table")
    return {key: as_set(value, f"{where}.{key}") for key, value in values.items()}


def _check_keys(table: Mapping[str, Any], allowed: Iterable[str], where: str = "") -> None:
    for key in table:
        if key not in allowed:
            raise unknown("key", key, allowed, where)


def _require(condition: bool, key: str, must: str) -> None:
    if not condition:
        raise BadInput(f"{key} must be {must}")
