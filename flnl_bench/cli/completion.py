"""Values that the tab key completes: names of methods, settings, runs, …

Each function gets the beginning of a value. It does not import torch, and a mistake in a plugin or a folder
never breaks the shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

SHARES = ("0.6", "1.0")  # of noisy clients, in the settings of the paper


def completer(names: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Make a function that completes a value from the names that `names` returns."""

    def complete(incomplete: str) -> list[str]:
        try:
            return sorted(name for name in names(incomplete) if name.startswith(incomplete))
        except Exception:  # the shell would show a traceback in the middle of a command
            return []

    return complete


@completer
def methods(incomplete: str) -> Iterable[str]:
    """Names of methods; after a slash those of variants."""
    from flnl_bench.methods import declarations

    return (name for name in declarations() if "/" in incomplete or "/" not in name)


@completer
def settings(_: str) -> Iterable[str]:
    """Settings with the paper's shares of noisy clients."""
    from flnl_bench.scenario import NOISES

    for kind in NOISES.complete().values():
        if kind.written or not kind.ratios:
            yield kind.name
        else:
            yield from (f"{kind.name}-{share}" for share in SHARES)


@completer
def partitions(_: str) -> Iterable[str]:
    """Partitions with example values."""
    from flnl_bench.scenario import PARTITIONS
    from flnl_bench.scenario.partition import example

    return map(example, PARTITIONS.complete().values())


@completer
def datasets(_: str) -> Iterable[str]:
    """Data sets; npz: and folder: need a path."""
    from flnl_bench.data import DATASETS

    return (kind.form.removesuffix("PATH") for kind in DATASETS.complete().values())


@completer
def models(_: str) -> Iterable[str]:
    """Networks."""
    from flnl_bench.models import MODELS

    return (kind.name for kind in MODELS.complete().values())


@completer
def presets(incomplete: str) -> Iterable[str]:
    """Presets of the package, and TOML files."""
    from flnl_bench.running.presets import PRESETS

    return (*PRESETS, *_files(incomplete, ".toml"))


@completer
def suites(incomplete: str) -> Iterable[str]:
    """Suites of the package, and TOML files."""
    from flnl_bench.suite.suite_file import shipped_suites

    return (*shipped_suites(), *_files(incomplete, ".toml"))


@completer
def trackers(_: str) -> Iterable[str]:
    """Trackers."""
    from flnl_bench.trackers import TRACKERS

    return (tracker.name for tracker in TRACKERS.complete().values())


@completer
def plots(_: str) -> Iterable[str]:
    """Kinds of pictures."""
    from flnl_bench.cli.plot import PLOT_HELP

    return PLOT_HELP


@completer
def metrics(_: str) -> Iterable[str]:
    """Metrics of leaderboards."""
    from flnl_bench.leaderboards.metrics import ALL_METRICS, COST, SPENT

    return (*ALL_METRICS, *SPENT, COST)


@completer
def formats(_: str) -> Iterable[str]:
    """Formats of leaderboards."""
    from flnl_bench.leaderboards.formats import FORMATS

    return FORMATS


@completer
def runs(_: str) -> Iterable[str]:
    """Folders of the runs below results/runs."""
    from flnl_bench.cli.runs import RUNS

    return (str(file.parent) for file in RUNS.rglob("run.json"))


def _files(incomplete: str, ending: str) -> Iterable[str]:
    folder = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)
    return [f"{path}/" if path.is_dir() else str(path) for path in folder.iterdir() if _shown(path, ending)]


def _shown(path: Path, ending: str) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or path.suffix == ending)
