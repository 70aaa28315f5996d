"""`flnl-bench scenario`: look at a federation before anything is trained, and hand it to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import print_json, reporting, stdout, table
from flnl_bench.cli.options import check_source, option

if TYPE_CHECKING:
    from flnl_bench.scenario import Scenario

app = typer.Typer(help="Show or export a scenario: who holds which images, with which wrong labels.")


@app.command("show")
def show_scenario(
    setting: options.Setting = None,
    dataset: options.Dataset = None,
    partition: options.Partition = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    file: options.ScenarioFile = None,
    preset: options.PresetName = "quick",
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Print a table of the clients: size, classes, noise type, nominal and realised noise ratio."""
    from flnl_bench.scenario import client_table, load_scenario, scenario_summary

    own = {
        "--setting": setting,
        "--dataset": dataset,
        "--partition": partition,
        "--clients": clients,
        "--samples": samples,
        "--seed": seed,
    }
    asked = check_source(file, own)
    if file is not None:
        scenario = load_scenario(file)
    else:
        scenario = _make(asked, dataset, partition, clients, samples, seed, preset, data_dir)
    if as_json:
        print_json({**scenario_summary(scenario), "per_client": client_table(scenario)})
    else:
        print_scenario(scenario)


@app.command()
def export(
    output: Annotated[
        Path,
        option(
            options.FILES, "FILE", "Write FILE.npz (everything) and FILE.json (for people).", "--output", "-o"
        ),
    ],
    setting: options.Setting = None,
    dataset: options.Dataset = None,
    partition: options.Partition = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    preset: options.PresetName = "quick",
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Write a scenario as npz and json, for `run --scenario` and for other code bases."""
    from flnl_bench.scenario import save_scenario, scenario_summary

    asked = check_source(None, {"--setting": setting})
    scenario = _make(asked, dataset, partition, clients, samples, seed, preset, data_dir)
    paths = [str(path) for path in save_scenario(scenario, output)]
    if as_json:
        print_json({**scenario_summary(scenario), "files": paths})
        return
    print("\n".join(paths))
    print(f"fingerprint {scenario.fingerprint}")


def _make(
    setting: str,
    dataset: str | None,
    partition: str | None,
    clients: int | None,
    samples: int | None,
    seed: int | None,
    preset: str,
    data_dir: Path | None,
) -> Scenario:
    """The scenario that `run` would make of the same options."""
    from flnl_bench.data import load_dataset
    from flnl_bench.runs.presets import load_preset
    from flnl_bench.runs.resolve import generate
    from flnl_bench.scenario import parse_partition, parse_setting

    name, spread, noise = dataset or "digits", parse_partition(partition or "iid"), parse_setting(setting)
    changes = {"clients": clients, "samples": samples}
    training = load_preset(preset).training(name, **{k: v for k, v in changes.items() if v is not None})
    seed = 1 if seed is None else seed
    loaded = load_dataset(name, data_dir, reporting())
    return generate(loaded, spread.name, noise.name, training.clients, seed, training.samples, samples)


def print_scenario(scenario: Scenario) -> None:
    """All clients, however many, and a line about the whole."""
    from flnl_bench.scenario import client_table, scenario_summary

    numbers = ("client", "size", "classes", "nominal", "realised")
    rows = table("client", "size", "classes", "noise", "nominal", "realised", right=numbers)
    for row in client_table(scenario):
        ratios = [_ratio(row[name]) for name in ("nominal", "realised")]
        rows.add_row(str(row["client"]), str(row["size"]), str(row["classes"]), row["noise"], *ratios)
    console, about = stdout(), scenario_summary(scenario)
    console.print(
        f"{about['dataset']} · {about['partition']} · {about['setting']} · seed {about['seed']}", style="bold"
    )
    console.print(rows)
    sizes = (
        f"{about['smallest']}"
        if about["smallest"] == about["largest"]
        else f"{about['smallest']}-{about['largest']}"
    )
    console.print(
        f"{about['clients']} clients ({about['noisy_clients']} noisy), {about['images']} images "
        f"({sizes} each), {_ratio(about['realised'])} wrong labels"
    )
    console.print(f"fingerprint {about['fingerprint']}")


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
