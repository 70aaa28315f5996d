"""The options that several commands share, and checks of them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flnl_bench.cli import completion
from flnl_bench.config import Training, check_seeds
from flnl_bench.errors import BadInput, unknown

SCENARIO, PROTOCOL, METHOD = "Scenario", "Protocol", "Method"
ONLY = "Which runs"
DEVICES, FILES = "Where it computes", "Files and output"


def option(panel: str, metavar: str, text: str, *names: str, default: str | bool = True, **more: Any) -> Any:
    """Declare an option in a panel of the help; `default` is shown if the real one is decided later."""
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, show_default=default, **more
    )


def flag(panel: str, text: str, name: str) -> Any:
    """Declare a switch that is off by default."""
    return typer.Option(name, help=text, rich_help_panel=panel, metavar="")


DatasetName = Annotated[
    str | None,
    option(
        SCENARIO,
        "NAME",
        "Data set; `flnl-bench list datasets` shows all.",
        default="digits",
        autocompletion=completion.datasets,
    ),
]
PartitionName = Annotated[
    str | None,
    option(
        SCENARIO,
        "NAME",
        "Who holds which images; `list partitions`.",
        default="iid",
        autocompletion=completion.partitions,
    ),
]
SettingName = Annotated[
    str | None,
    option(
        SCENARIO,
        "NAME",
        "Label noise, as in sym-1.0; needed unless --scenario is given.",
        autocompletion=completion.settings,
    ),
]
Clients = Annotated[int | None, option(SCENARIO, "K", "Number of clients.", default="preset")]
Samples = Annotated[
    int | None, option(SCENARIO, "N", "Number of train images: a random subset.", default="preset")
]
Seed = Annotated[int | None, option(SCENARIO, "N", "Seed of all draws.", default="1", min=0)]
ScenarioFile = Annotated[
    Path | None,
    option(SCENARIO, "FILE", "Use an exported scenario instead of these options.", "--scenario"),
]
PresetName = Annotated[
    str,
    option(
        PROTOCOL,
        "NAME",
        "quick, medium, paper or FILE.toml; `list presets`.",
        "--preset",
        autocompletion=completion.presets,
    ),
]
PluginFiles = Annotated[
    list[Path] | None,
    option(
        METHOD, "FILE.py", "Use what this Python file adds; repeatable.", "--plugin", default="FLNL_PLUGINS"
    ),
]
Trackers = Annotated[
    list[str] | None,
    option(
        FILES,
        "NAME",
        "Show the run elsewhere; `list trackers`; repeatable.",
        "--tracker",
        autocompletion=completion.trackers,
    ),
]
Force = Annotated[bool, flag(FILES, "Replace FILE if it exists.", "--force")]
SaveModel = Annotated[bool, flag(FILES, "Keep the final and the best global weights.", "--save-model")]
KeepCheckpoints = Annotated[
    int | None,
    option(
        FILES,
        "N",
        "Keep the checkpoint after every N-th round, so that `verify` can repeat late rounds.",
        "--keep-checkpoints",
        min=1,
        default="none is kept",
    ),
]
DataDir = Annotated[
    Path | None, option(FILES, "DIR", "Folder of the data sets.", default="FLNL_DATA, or a cache folder")
]


def _only(what: str, names: Callable[[str], list[str]]) -> Any:
    return option(ONLY, "NAME", f"Only this {what}; may be repeated.", autocompletion=names)


OnlyMethod = Annotated[list[str] | None, _only("method or variant", completion.methods)]
OnlyDataset = Annotated[list[str] | None, _only("data set", completion.datasets)]
OnlyPartition = Annotated[list[str] | None, _only("partition", completion.partitions)]
OnlySetting = Annotated[list[str] | None, _only("setting", completion.settings)]
OnlyPreset = Annotated[list[str] | None, _only("preset", completion.presets)]
OnlySeed = Annotated[list[int] | None, option(ONLY, "N", "Only this seed; may be repeated.")]
Json = Annotated[bool, flag(FILES, "Print exactly one JSON object on stdout.", "--json")]


def check_output(path: Path, force: bool) -> None:
    """Refuse an existing file unless it may be replaced, and a folder that does not exist."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; --output is a file")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is a device or pipe; --output is a file")
    if path.exists() and not force:
        raise BadInput(f"{path} exists already; choose another file, or replace it with --force")
    if not path.parent.is_dir():
        raise BadInput(f"cannot write {path}: there is no folder {path.parent}")


def parse_seeds(seed: int | None, seeds: str | None) -> list[int]:
    """Return the seeds that were asked for, or 1."""
    if seeds is None:
        return [1 if seed is None else seed]
    if seed is not None:
        raise BadInput("--seed and --seeds are both given; use one of them")
    parts = [part.strip() for part in seeds.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(
            f"--seeds {seeds!r}: expected whole numbers from 0, separated by commas, as in 1,13,42"
        )
    return check_seeds(map(int, parts))


def use_plugins(files: list[Path] | None) -> None:
    """Register the entries of the files of --plugin."""
    if files:
        from flnl_bench.registry import use_plugin_files

        use_plugin_files(files)


def parse_training(changes: list[str], asked: Mapping[str, object]) -> dict[str, Any]:
    """Parse the values of --training; a value that is also among the options in `asked` is refused."""
    from flnl_bench.methods import parse_value

    kinds, values = typing.get_type_hints(Training), {}
    for key, text in parse_changes(changes, "--training").items():
        if key not in kinds:
            raise unknown("value of the protocol", key, kinds, "--training")
        if asked.get(key) is not None:
            raise BadInput(f"--training {key} and --{key.replace('_', '-')} are both given; use one of them")
        values[key] = parse_value(f"--training {key}", text, kinds[key])
    return values


def parse_changes(changes: list[str], name: str = "--set") -> dict[str, str]:
    """Parse the `key=value` pairs of --set or of a similar option."""
    pairs: dict[str, str] = {}
    for text in changes:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            like = {"--training": "lr=0.05", "--slurm": "partition=gpu", "--ray": "memory=4"}.get(
                name, "mu=0.1"
            )
            raise BadInput(f"{name} {text!r}: expected KEY=VALUE, as in {name} {like}")
        if key.strip() in pairs:
            raise BadInput(f"{name} {key.strip()} is given twice")
        pairs[key.strip()] = value.strip()
    return pairs
