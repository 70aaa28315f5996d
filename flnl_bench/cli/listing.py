"""`flnl-bench list`: every name that the other commands take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import note, print_json, stdout, table
from flnl_bench.errors import unknown

if TYPE_CHECKING:
    from flnl_bench.api import Method
    from flnl_bench.registry import Registry


Rows = list[dict[str, Any]]  # each with a name and a description


def methods() -> Rows:
    """Methods and variants, with their hyper-parameters."""
    registry = _registry()
    return [
        {
            "name": name,
            "description": ((cls.__doc__ or "").strip().splitlines() or [""])[0],
            "reference": cls.reference,
            "plugin": registry.origin[name],
            "variants": {f"{name}/{variant}": dict(values) for variant, values in cls.variants.items()},
            "hyperparameters": _hyperparameters(cls),
        }
        for name, cls in registry.methods.items()
    ]


def datasets() -> Rows:
    """Data sets and where they come from."""
    from flnl_bench.data import DATASETS

    return [dataclasses.asdict(info) for info in DATASETS.values()]


def settings() -> Rows:
    """Forms of settings: the label noise."""
    from flnl_bench.scenario import SETTINGS

    return _named(SETTINGS)


def partitions() -> Rows:
    """Forms of partitions: who holds which images."""
    from flnl_bench.scenario import PARTITIONS

    return _named(PARTITIONS)


def models() -> Rows:
    """Networks."""
    from flnl_bench.models import MODELS

    return _named(MODELS)


def presets() -> Rows:
    """Presets, with the protocol of each data set."""
    from flnl_bench.data import DATASETS
    from flnl_bench.runs.presets import PRESETS, load_preset

    loaded = [load_preset(name) for name in PRESETS]
    return [
        {
            "name": preset.name,
            "description": preset.description,
            "protocols": {name: dataclasses.asdict(preset.training(name)) for name in DATASETS},
        }
        for preset in loaded
    ]


def plugins() -> Rows:
    """Plugins, the distribution of each and what it adds."""
    registry = _registry()
    added = {
        plugin: [m for m, origin in registry.origin.items() if origin == plugin]
        for plugin in registry.plugins
    }
    return [
        {
            "name": plugin,
            "description": f"from {distribution}: {', '.join(added[plugin]) or 'nothing'}",
            "distribution": distribution,
            "methods": added[plugin],
        }
        for plugin, distribution in registry.plugins.items()
    ]


KINDS: dict[str, Callable[[], Rows]] = {
    each.__name__: each for each in (methods, datasets, settings, partitions, models, presets, plugins)
}


def _named(names: Mapping[str, str]) -> Rows:
    return [{"name": name, "description": description} for name, description in names.items()]


def _registry() -> Registry:
    from flnl_bench.registry import default_registry

    registry = default_registry()
    for problem in registry.problems:
        note(f"warning: {problem}")
    return registry


def _hyperparameters(cls: type[Method]) -> dict[str, dict[str, Any]]:
    """Type and default of each hyper-parameter."""
    from flnl_bench.registry import hyperparameters, kind_name, values_of

    defaults = values_of(cls())
    return {
        name: {"type": kind_name(kind), "default": defaults[name]}
        for name, kind in hyperparameters(cls).items()
    }


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[methods|datasets|settings|partitions|models|presets|plugins]",
            help="What to list.",
            show_default="everything",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List methods, data sets, settings, partitions, models, presets and plugins."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    found = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    if as_json:
        print_json(found)
        return
    for number, (name, rows) in enumerate(found.items()):
        if number:
            print()
        print_rows(name, rows)


def print_rows(kind: str, rows: Rows) -> None:
    """One table: a name, then what is to be said about it."""
    made = table("name", "description", title=kind)
    made.show_header = False
    made.columns[0].min_width = 18  # the tables of all kinds line up
    made.columns[0].no_wrap = True
    for row in rows:
        made.add_row(row["name"], "\n".join(_lines(row)))
    stdout().print(made)


def _lines(row: Mapping[str, Any]) -> list[str]:
    """What people read about one name; --json has more."""
    lines = [row["description"]]
    if row.get("source"):
        lines[0] += f" · {row['source'].replace('NAME', row['name'])}"
    if row.get("reference"):
        lines.append(row["reference"])
    if row.get("variants"):
        lines.append(f"variants: {', '.join(row['variants'])}")
    if row.get("hyperparameters"):
        values = ", ".join(f"{key}={about['default']}" for key, about in row["hyperparameters"].items())
        lines.append(f"--set: {values}")
    return lines
