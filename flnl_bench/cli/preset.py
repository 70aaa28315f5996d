"""`flnl-bench show preset`: the resolved values of a preset for a data set and the methods."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from flnl_bench.cli.console import print_json, stdout, table

if TYPE_CHECKING:
    from flnl_bench.methods import Methods
    from flnl_bench.running.presets import Preset


def show_preset(name: str, dataset: str, method: str | None, as_json: bool) -> None:
    """Print the protocol, and the hyper-parameters of one method or of all with the origin of each value."""
    from flnl_bench.data import dataset_name
    from flnl_bench.methods import default_methods
    from flnl_bench.running.presets import load_preset
    from flnl_bench.running.resolve import protocol

    preset, dataset, registry = load_preset(name), dataset_name(dataset), default_methods()
    training = dataclasses.asdict(protocol(preset, dataset, {}))
    methods = {each: values_with_origin(each, preset, dataset, registry) for each in [method] if each}
    methods = methods or {
        each: values_with_origin(each, preset, dataset, registry) for each in registry.methods
    }
    if as_json:
        print_json({"preset": preset.name, "dataset": dataset, "training": training, "methods": methods})
        return
    console = stdout()
    console.print(f"{preset.name} on {dataset}", style="bold")
    rows = table("of", "value", "", "from")
    for key, value in training.items():
        rows.add_row("training", key, _text(value), "")
    for each, values in methods.items():
        for key, about in values.items():
            rows.add_row(each, key, _text(about["value"]), about["from"])
    console.print(rows)


def values_with_origin(method: str, preset: Preset, dataset: str, registry: Methods) -> dict[str, Any]:
    """Return each hyper-parameter of a method or variant with its value and the origin of the value."""
    from flnl_bench import methods

    cls = registry.method_class(method)
    given = preset.hyperparameters(dataset, cls.name)
    variant = registry.variant_values(method)
    values = methods.values_of(registry.make(method, given, {}))
    return {
        key: {"value": value, "from": "variant" if key in variant else "preset" if key in given else "method"}
        for key, value in values.items()
    }


def _text(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
