"""`flnl-bench scenario`: show a scenario, or export it for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import print_json, reporting, say, stdout, table
from flnl_bench.cli.options import option

if TYPE_CHECKING:
    from flnl_bench.scenario import Scenario

scenario_commands = typer.Typer(
    help="Show or export a scenario: who holds which images, with which wrong labels."
)


@scenario_commands.command("show")
def show_scenario(
    setting: options.SettingName = None,
    dataset: options.DatasetName = None,
    partition: options.PartitionName = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    file: options.ScenarioFile = None,
    preset: options.PresetName = "quick",
    plugin: options.PluginFiles = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Print the clients (size, classes, noise, nominal and realised ratio) and the spread of each class."""
    scenario = _scenario(dict(locals()), file)
    from flnl_bench.config import sampled_clients
    from flnl_bench.running.presets import load_preset
    from flnl_bench.scenario import class_table, client_table, scenario_summary

    fraction = load_preset(preset).training(scenario.dataset).fraction
    sampled = sampled_clients(fraction, len(scenario.clients))
    per_class = class_table(scenario, sampled)
    if as_json:
        tables = {"per_client": client_table(scenario), "sampled": sampled, "per_class": per_class}
        print_json({**scenario_summary(scenario), **tables})
    else:
        print_scenario(scenario)
        print_classes(per_class, sampled)


@scenario_commands.command()
def export(
    output: Annotated[
        Path,
        option(
            options.FILES, "FILE", "Write FILE.npz (everything) and FILE.json (for people).", "--output", "-o"
        ),
    ],
    setting: options.SettingName = None,
    dataset: options.DatasetName = None,
    partition: options.PartitionName = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    preset: options.PresetName = "quick",
    plugin: options.PluginFiles = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Write a scenario as npz and json, for `run --scenario` and for other code bases."""
    scenario = _scenario(dict(locals()))
    from flnl_bench.scenario import save_scenario, scenario_summary

    paths = [str(path) for path in save_scenario(scenario, output)]
    if as_json:
        print_json({**scenario_summary(scenario), "files": paths})
        return
    say("\n".join(paths))
    say(f"fingerprint {scenario.fingerprint}")


def _scenario(arguments: Mapping[str, Any], file: Path | None = None) -> Scenario:
    """Load the scenario of a file, or draw the scenario that `run` would draw from the same options."""
    from flnl_bench.running.api import make_scenario
    from flnl_bench.running.options import check_source
    from flnl_bench.scenario import load_scenario

    options.use_plugins(arguments["plugin"])
    names = ("setting", "dataset", "partition", "clients", "samples", "seed")
    given = {name: arguments[name] for name in names if arguments[name] is not None}
    check_source({**given, "scenario": file}, "--")
    if file is not None:
        return load_scenario(file)
    preset, data_dir = arguments["preset"], arguments["data_dir"]
    return make_scenario(**given, preset=preset, data_dir=data_dir, loading=reporting())


def print_scenario(scenario: Scenario) -> None:
    """Print a table of the clients, and the totals."""
    from flnl_bench.scenario import client_table, scenario_summary

    numbers = ("client", "size", "classes", "nominal", "realised")
    rows = table("client", "size", "classes", "noise", "nominal", "realised", right=numbers)
    for row in client_table(scenario):
        ratios = [_ratio(row[name]) for name in ("nominal", "realised")]
        noise = f"{row['noise']}, rare" if row.get("rare") else row["noise"]
        rows.add_row(str(row["client"]), str(row["size"]), str(row["classes"]), noise, *ratios)
    console, about = stdout(), scenario_summary(scenario)
    console.print(
        f"{about['dataset']} · {about['partition']} · {about['setting']} · seed {about['seed']}", style="bold"
    )
    console.print(rows)
    sizes = "-".join(str(size) for size in dict.fromkeys((about["smallest"], about["largest"])))
    is_open = f" ({_ratio(about['realised_open'])} open)" if "realised_open" in about else ""
    console.print(
        f"{about['clients']} clients ({about['noisy_clients']} noisy), {about['images']} images "
        f"({sizes} each), {_ratio(about['realised'])} wrong labels{is_open}"
    )
    console.print(f"fingerprint {about['fingerprint']}")


def print_classes(per_class: list[dict[str, Any]], sampled: int) -> None:
    """The spread of each class over the clients."""
    from flnl_bench.scenario.class_spread import SCARCE, SIMULATED_ROUNDS

    names = ("class", "images", "holders", "effective", "scarce", "purity")
    rows = table(*names, right=names)
    for row in per_class:
        counts = [str(row[name]) for name in ("class", "images", "holders")]
        ratios = [_ratio(row[name]) for name in ("scarce", "purity")]
        rows.add_row(*counts, f"{row['effective_holders']:.1f}", *ratios)
    stdout().print(rows)
    say(
        f"effective: 1/Σ share² over the holders of a class; scarce: chance that it has less than "
        f"{SCARCE:.0%} of a round's images, with {sampled} clients per round ({SIMULATED_ROUNDS:,} "
        f"simulated rounds); purity: share of right labels among those of the class"
    )


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
