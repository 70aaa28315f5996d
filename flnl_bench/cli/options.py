"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

SCENARIO, PROTOCOL, METHOD, FILES = "Scenario", "Protocol", "Method", "Files and output"


def option(panel: str, metavar: str, text: str, *names: str, default: str | bool = True, **more: Any) -> Any:
    """An option of a panel of the help; `default` is shown where the real one is decided later."""
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, show_default=default, **more
    )


def flag(panel: str, text: str, name: str) -> Any:
    """A switch that is off by default."""
    return typer.Option(name, help=text, rich_help_panel=panel, metavar="")


Dataset = Annotated[
    str | None, option(SCENARIO, "NAME", "Data set; `flnl-bench list datasets` shows all.", default="digits")
]
Partition = Annotated[
    str | None, option(SCENARIO, "NAME", "Who holds which images; `list partitions`.", default="iid")
]
Setting = Annotated[
    str | None, option(SCENARIO, "NAME", "Label noise, as in sym-1.0; needed unless --scenario is given.")
]
Clients = Annotated[int | None, option(SCENARIO, "K", "Number of clients.", default="preset")]
Samples = Annotated[
    int | None, option(SCENARIO, "N", "Train on a random subset of so many images.", default="preset")
]
Seed = Annotated[int | None, option(SCENARIO, "N", "Seed of all draws.", default="1", min=0)]
ScenarioFile = Annotated[
    Path | None,
    option(SCENARIO, "FILE", "Use an exported scenario instead of these options.", "--scenario"),
]
PresetName = Annotated[str, option(PROTOCOL, "NAME", "quick or paper; see `list presets`.", "--preset")]
DataDir = Annotated[
    Path | None, option(FILES, "DIR", "Folder of the data sets.", default="FLNL_DATA, or a cache folder")
]
Json = Annotated[bool, flag(FILES, "Print exactly one JSON object on stdout.", "--json")]
