"""Presets: protocols as data. One TOML file each, checked when it is read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from flnl_bench.config import TRAINING, Training
from flnl_bench.errors import BadInput, unknown

PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Preset:
    """A protocol per data set, and hyper-parameters per method where they differ from the method's own."""

    name: str
    description: str
    default: Mapping[str, Any]
    datasets: Mapping[str, Mapping[str, Any]]

    def training(self, dataset: str, **changes: Any) -> Training:
        """The protocol for a data set, with what the user changed."""
        values = {**self.default, **self.datasets.get(dataset, {})}
        if changes.get("model", values["model"]) != values["model"]:
            values.pop("pretrained", None)  # weights of the preset's own network
        values |= changes
        values.pop("methods", None)
        for name in ("samples", "test_samples"):
            if values.get(name) == "all":
                values[name] = None
        return Training(**values)

    def hyperparameters(self, dataset: str, method: str) -> dict[str, Any]:
        """The values that this preset gives to a method (not to a variant) on a data set."""
        tables = (self.default, self.datasets.get(dataset, {}))
        return {k: v for table in tables for k, v in table.get("methods", {}).get(method, {}).items()}


def load_preset(name: str) -> Preset:
    """Read and check a preset."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    where = f"{name}.toml"
    try:
        table = tomllib.loads((files(__package__) / where).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{where}: {error}") from None
    for key in table.keys() - {"description", "default", "datasets"}:
        raise unknown("table", key, ("description", "default", "datasets"), where)
    for section in (table["default"], *table.get("datasets", {}).values()):
        for key in section.keys() - {*TRAINING, "methods"}:
            raise unknown("key", key, TRAINING, where)
    return Preset(name, table["description"], table["default"], table.get("datasets", {}))
