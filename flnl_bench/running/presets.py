"""Presets: protocols as TOML files, those of this package and those of users."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from flnl_bench.config import TRAINING_FIELDS, Training, as_set, training_changes
from flnl_bench.errors import BadInput, unknown
from flnl_bench.input_files import read_toml

PRESETS = ("quick", "medium", "paper")
TABLES = ("description", "base", "default", "datasets")
_COUNTS_OR_ALL = ("samples", "test_samples")  # may be "all"


@dataclass(frozen=True)
class Preset:
    """A protocol per data set, and hyper-parameters per method where they differ from the method's own."""

    name: str
    description: str
    default: Mapping[str, Any]
    datasets: Mapping[str, Mapping[str, Any]]
    base: Preset | None = None  # has the values that this preset lacks

    def tables(self, dataset: str) -> Iterator[Mapping[str, Any]]:
        """Yield the tables of values for a data set; later ones win."""
        yield from self.base.tables(dataset) if self.base else ()
        yield from (self.default, self.datasets.get(_section(dataset), {}))

    def knows(self, dataset: str) -> bool:
        """Return whether it has a section for a data set."""
        return _section(dataset) in self.datasets or (self.base is not None and self.base.knows(dataset))

    def training(self, dataset: str, **changes: Any) -> Training:
        """Return the protocol for a data set, with the user's changes."""
        values = {k: v for table in self.tables(dataset) for k, v in table.items() if k != "methods"}
        if changes.get("model", values.get("model")) != values.get("model"):
            values.pop("pretrained", None)  # weights of the preset's own network
        values |= changes
        for name in _COUNTS_OR_ALL:
            if values.get(name) == "all":
                values[name] = None
        try:
            return Training(**values)
        except TypeError:  # values are missing
            hint = 'give them, or name a preset that has them: base = "quick"'
            missing = [name for name in TRAINING_FIELDS[:9] if name not in values]
            raise BadInput(f"preset {self.name!r} lacks {', '.join(missing)}; {hint}") from None

    def hyperparameters(self, dataset: str, method: str) -> dict[str, Any]:
        """Return the hyper-parameters that this preset gives to a method (not to a variant) on a data set."""
        tables = [table.get("methods", {}).get(method, {}) for table in self.tables(dataset)]
        return {key: value for table in tables for key, value in table.items()}


def _section(dataset: str) -> str:
    return dataset.partition("@")[0]  # of own data, without the digest


def load_preset(name: str) -> Preset:
    """Read and check a preset, by its name or from a user's file."""
    if name.endswith(".toml"):
        return _read_own(Path(name).expanduser())
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return _shipped(name, (files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache  # a suite asks thousands of times
def _shipped(name: str, content: str) -> Preset:
    return _parse(name, f"{name}.toml", tomllib.loads(content))


def _read_own(path: Path) -> Preset:
    """Read a user's preset, whose name is that of the file."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", path.stem) or path.stem in PRESETS:
        rule = f"lower-case words joined by dashes, and none of {', '.join(PRESETS)}"
        raise BadInput(f"preset {path}: the name of the file must be {rule}")
    try:
        table = read_toml(path)
    except FileNotFoundError:
        raise BadInput(f"preset {path}: there is no such file") from None
    return _checked(_parse(path.stem, str(path), table), str(path))


def _checked(preset: Preset, where: str) -> Preset:
    """Check the data sets, methods and values of a user's preset; errors name the file `where`."""
    from flnl_bench.data import section_name
    from flnl_bench.methods import default_methods, unknown_method

    registry = default_methods()
    methods = registry.methods
    for section, values in {"default": preset.default, **preset.datasets}.items():
        check_values({k: v for k, v in values.items() if k != "methods"}, f"{where}: {section}: ")
        for name, given in values.get("methods", {}).items():
            if name not in methods:
                raise unknown_method(name, methods, where)
            place = f"{where}: {section}.methods.{name}."
            texts = {key: as_set(value, place + key) for key, value in given.items()}
            given |= registry.parse(name, texts, place)
    try:
        return replace(preset, datasets={section_name(k): v for k, v in preset.datasets.items()})
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def check_values(values: Mapping[str, Any], where: str) -> None:
    """Refuse values of the protocol that are out of range; errors begin with `where`."""
    try:
        load_preset("quick").training("digits", **values)
    except BadInput as error:
        raise BadInput(f"{where}{error}") from None


def _parse(name: str, where: str, table: dict[str, Any]) -> Preset:
    for key in table.keys() - {*TABLES}:
        raise unknown("table", key, TABLES, where)
    if not isinstance(table.get("datasets", {}), dict):
        raise BadInput(f"{where}: datasets must be a table of tables, as in [datasets.digits]")
    sections = {"default": table.get("default", {}), **table.get("datasets", {})}
    for section, values in sections.items():
        if not isinstance(values, dict) or not _is_table_of_tables(values.get("methods", {})):
            raise BadInput(f"{where}: {section} must be a table of values, and methods in it one of tables")
        for key in values.keys() - {*TRAINING_FIELDS, "methods"}:
            raise unknown("key", key, TRAINING_FIELDS, where)
        plain = {
            k: v for k, v in values.items() if k != "methods" and not (k in _COUNTS_OR_ALL and v == "all")
        }
        values |= training_changes(plain, f"{where}: {section}.")
    base = load_preset(table["base"]) if table.get("base") in PRESETS else None
    if "base" in table and base is None:
        raise unknown("preset", str(table["base"]), PRESETS, f"{where}: base")
    description = str(table.get("description", f"your own, from {where}"))
    return Preset(name, description, table.get("default", {}), table.get("datasets", {}), base)


def _is_table_of_tables(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(table, dict) for table in value.values())
