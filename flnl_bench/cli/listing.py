"""`flnl-bench list`: every name that the other commands take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import note, percent, print_json, stdout, table
from flnl_bench.cli.show import RUNS
from flnl_bench.errors import BadInput, unknown

if TYPE_CHECKING:
    from flnl_bench.api import Method
    from flnl_bench.registry import Registry

E = TypeVar("E")

HASH = 8  # letters at the end of a folder's name
Rows = list[dict[str, Any]]  # each with a name and a description


def methods() -> Rows:
    """Methods and variants, with their hyper-parameters."""
    from flnl_bench.declarations import declaration
    from flnl_bench.methods import default_methods, variant_values

    registry = default_methods()
    return [
        {
            "name": name,
            "title": declaration(name).title or name,
            "description": ((cls.__doc__ or "").strip().splitlines() or [""])[0],
            "reference": cls.reference,
            "plugin": registry.origin[name],
            "variants": {f"{name}/{variant}": dict(variant_values(cls, variant)) for variant in cls.variants},
            "hyperparameters": _hyperparameters(cls),
        }
        for name, cls in registry.methods.items()
    ]


def datasets() -> Rows:
    """Data sets and where they come from."""
    from flnl_bench.data import DATASETS

    return [
        {
            "name": kind.form,
            "description": kind.help,
            "classes": kind.classes,
            "train_images": kind.train_images,
            "source": kind.source,
            "offline": kind.offline,
            "plugin": plugin,
        }
        for kind, plugin in _entries(DATASETS)
    ]


def settings() -> Rows:
    """Forms of settings: the label noise."""
    from flnl_bench.scenario import NOISES

    return [
        {**_row(kind.form, kind.about, plugin), "options": [option.about for option in kind.options]}
        for kind, plugin in _entries(NOISES)
    ]


def partitions() -> Rows:
    """Forms of partitions: who holds which images."""
    from flnl_bench.scenario import PARTITIONS

    return [_row(kind.form, kind.about, plugin) for kind, plugin in _entries(PARTITIONS)]


def models() -> Rows:
    """Networks."""
    from flnl_bench.models import MODELS

    return [_row(kind.name, kind.help, plugin) for kind, plugin in _entries(MODELS)]


def presets() -> Rows:
    """Presets, with the protocol of each data set."""
    from flnl_bench.data import DATASETS
    from flnl_bench.running.presets import PRESETS, load_preset
    from flnl_bench.running.resolve import protocol

    loaded = [load_preset(name) for name in PRESETS]
    return [
        {
            "name": preset.name,
            "description": preset.description,
            "protocols": {
                kind.form: dataclasses.asdict(protocol(preset, kind.form, {}))
                for kind in DATASETS.complete().values()
            },
        }
        for preset in loaded
    ]


def trackers() -> Rows:
    """Where runs can be shown while they are played."""
    from flnl_bench.trackers import TRACKERS

    return [_row(tracker.name, tracker.help, plugin) for tracker, plugin in _entries(TRACKERS)]


def plugins() -> Rows:
    """Plugins: version, where each comes from, what it adds or why it cannot be used."""
    from flnl_bench.methods import default_methods

    registry = default_methods()
    rows = []
    for plugin, source in registry.sources.items():
        added = {
            kind: [name for name, origin in table.origin.items() if origin == plugin]
            for kind, table in registry.tables.items()
        }
        told = [
            f"{'' if kind == 'methods' else kind + ' '}{', '.join(names)}"
            for kind, names in added.items()
            if names
        ]
        failed = registry.failed.get(plugin)
        what = f"not loaded: {failed}" if failed else "; ".join(told) or "nothing"
        origin = source.where if source.file else f"{source.owner} {source.version}".rstrip()
        about = {"distribution": source.owner, "version": source.version, "source": source.where}
        rows.append(
            {"name": plugin, "description": f"from {origin}: {what}", "failed": failed, **about, **added}
        )
    return rows


KINDS: dict[str, Callable[[], Rows]] = {
    each.__name__: each
    for each in (methods, datasets, settings, partitions, models, presets, trackers, plugins)
}


def _entries(table: Registry[E]) -> list[tuple[E, str]]:
    """The entries of a kind, those of plugins too, with the plugin of each."""
    full = table.complete()
    return [(entry, full.origin[name]) for name, entry in full.items()]


def _row(name: str, description: str, plugin: str) -> dict[str, Any]:
    return {"name": name, "description": description, "plugin": plugin}


def _hyperparameters(cls: type[Method]) -> dict[str, dict[str, Any]]:
    """Type, default and range of each hyper-parameter; the range is a sentence, None if there is none."""
    from flnl_bench.methods import hyperparameters, kind_name, values_of
    from flnl_bench.ranges import ranges_of

    defaults, ranges = values_of(cls()), {name: str(allowed) for name, allowed in ranges_of(cls).items()}
    return {
        name: {"type": kind_name(kind), "default": defaults[name], "range": ranges.get(name)}
        for name, kind in hyperparameters(cls).items()
    }


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar=f"[{'|'.join((*KINDS, 'runs'))}]",
            help="What to list.",
            show_default="every name",
        ),
    ] = None,
    method: options.OnlyMethod = None,
    dataset: options.OnlyDataset = None,
    partition: options.OnlyPartition = None,
    setting: options.OnlySetting = None,
    preset: options.OnlyPreset = None,
    status: Annotated[
        list[str] | None,
        options.option(options.ONLY, "NAME", "Only this: done, running, interrupted or failed; repeatable."),
    ] = None,
    folder: Annotated[
        Path | None,
        options.option(options.ONLY, "DIR", "Results folder of the runs.", "--runs", default=str(RUNS)),
    ] = None,
    plugin: options.Plugins = None,
    as_json: options.Json = False,
) -> None:
    """List methods, data sets, settings, partitions, models, presets, trackers and plugins; or runs."""
    only = {"method": method, "dataset": dataset, "partition": partition, "setting": setting}
    only |= {"preset": preset, "status": status}
    if kind == "runs":
        list_runs(folder or RUNS, {name: given or [] for name, given in only.items()}, as_json)
        return
    given = [name for name, value in {**only, "runs": folder}.items() if value]
    if given:
        raise BadInput(f"--{given[0]} chooses runs: `flnl-bench list runs --{given[0]} …`")
    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, (*KINDS, "runs"))
    options.use_plugins(plugin)
    from flnl_bench.registry import installed

    found = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    for problem in installed().problems:
        note(f"warning: {problem}")
    if as_json:
        print_json(found)
        return
    for number, (name, rows) in enumerate(found.items()):
        if number:
            print()
        print_rows(name, rows)


@dataclasses.dataclass(frozen=True)
class ListedRun:
    """A line of `list runs`."""

    method: str
    dataset: str
    partition: str
    setting: str
    preset: str
    seed: int
    status: str
    rounds: int  # finished
    last10: float | None
    best: float | None
    error: str | None
    run_dir: str


def list_runs(folder: Path, only: Mapping[str, Sequence[str]], as_json: bool) -> None:
    """The runs of a results folder, whatever has become of them."""
    from flnl_bench.cli.results import warn_files
    from flnl_bench.leaderboards.pandas_api import check_folder
    from flnl_bench.leaderboards.runs import chosen
    from flnl_bench.leaderboards.terminal import width_here
    from flnl_bench.results.run_folder import read_records
    from flnl_bench.results.run_record import read_record

    check_folder(folder)
    found = read_records(folder)
    warn_files(found.problems, "not listed: ")
    records = {**found.done, **{path: read_record(path / "run.json") for path in found.unfinished}}
    runs = []
    for path, record in sorted(records.items()):
        summary = record.summary
        rounds, last10, best = (summary.rounds, summary.last10, summary.best) if summary else (0, None, None)
        state = {"status": record.status, "rounds": rounds, "last10": last10, "best": best}
        names: dict[str, Any] = {**record.config.names, **state}
        runs.append(ListedRun(**names, error=record.error, run_dir=str(path)))
    if not runs:
        raise BadInput(f"there is no run below {folder}")
    left = chosen(runs, only)
    if as_json:
        print_json({"runs": [dataclasses.asdict(run) for run in left]})
        return
    numeric = ("seed", "last-10", "best")
    made = table("run", "method", "where", *numeric, "status", right=numeric)
    for run in left:
        where = f"{run.dataset} · {run.partition} · {run.setting} · {run.preset}"
        numbers = [percent(value) if run.status == "done" else "" for value in (run.last10, run.best)]
        status = f"{run.status}: {run.error}" if run.error else run.status
        made.add_row(run.run_dir[-HASH:], run.method, where, str(run.seed), *numbers, status)
    made.columns[0].no_wrap = True  # `show` takes it
    console = stdout()
    console.width = width_here()
    console.print(made)
    note(f"{len(left)} of {len(runs)} runs below {folder}; {_how(folder)}")


def _how(folder: Path) -> str:
    """How to look at one of the runs that are listed: only below results/runs is the end of a name enough."""
    if folder == RUNS:
        return "`flnl-bench show` takes the first column"
    return "`flnl-bench show` takes their folders, which --json has"


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
    titled = row.get("title", row["name"]) != row["name"]
    lines = [f"{row['title']}: {row['description']}" if titled else row["description"]]
    if row.get("source") and "failed" not in row:
        lines[0] += f" · {row['source']}"
    if row.get("reference"):
        lines.append(row["reference"])
    lines += [f",{option}" for option in row.get("options", ())]
    if row.get("variants"):
        lines.append(f"variants: {', '.join(row['variants'])}")
    known = row.get("hyperparameters", {})
    if known:
        lines.append("--set: " + ", ".join(_setting(key, about) for key, about in known.items()))
    for name, values in row.get("variants", {}).items():
        own = ", ".join(f"{key}={value}" for key, value in values.items() if key not in known)
        lines += [f"{name} --set: {own}"] if own else []
    return lines


def _setting(key: str, about: Mapping[str, Any]) -> str:
    """A hyper-parameter with its default and range."""
    allowed = f" ({about['range']})" if about["range"] else ""
    return f"{key}={about['default']}{allowed}"
