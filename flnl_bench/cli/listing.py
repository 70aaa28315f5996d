"""`flnl-bench list`: every name that the other commands take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import note, percent, print_json, stdout, table
from flnl_bench.cli.results import WithPublished
from flnl_bench.cli.runs import RUNS
from flnl_bench.errors import BadInput, unknown
from flnl_bench.results.run_record import RUN_STATUSES

if TYPE_CHECKING:
    from flnl_bench.registry import Registry
    from flnl_bench.results.run_record import RunRecord

_Entry = TypeVar("_Entry")

HASH = 16  # letters at the end of a folder's name
_Rows = list[dict[str, Any]]  # each with a name and a description


def _methods() -> _Rows:
    """Methods and variants, with their hyper-parameters."""
    from flnl_bench.method_facts import method_facts
    from flnl_bench.methods import assumptions_of, declaration

    return [
        {"name": name, "title": declaration(name).title or name, "assumes": assumptions_of(name), **facts}
        for name, facts in method_facts().items()
        if "variants" in facts
    ]


def _datasets() -> _Rows:
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


def _settings() -> _Rows:
    """Forms of settings: the label noise."""
    from flnl_bench.scenario import NOISES

    return _with_options(NOISES)


def _partitions() -> _Rows:
    """Forms of partitions: who holds which images."""
    from flnl_bench.scenario import PARTITIONS

    return _with_options(PARTITIONS)


def _with_options(kinds: Any) -> _Rows:
    return [
        {**_row(kind.form, kind.about, plugin), "options": [option.about for option in kind.options]}
        for kind, plugin in _entries(kinds)
    ]


def _models() -> _Rows:
    """Networks."""
    from flnl_bench.models import MODELS

    return [_row(kind.name, kind.help, plugin) for kind, plugin in _entries(MODELS)]


def _presets() -> _Rows:
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


def _suites() -> _Rows:
    """Suites of this package: many runs by one name."""
    from flnl_bench.suite.suite_file import read_suite, shipped_suites

    rows: _Rows = []
    for name, path in shipped_suites().items():
        suite = read_suite(path)
        lacks = "; ".join(f"{what}: {why}" for what, why in suite.missing.items())
        description = f"{suite.description} Missing: {lacks}." if lacks else suite.description
        rows.append({"name": name, "description": description, "missing": suite.missing, "file": str(path)})
    return rows


def _trackers() -> _Rows:
    """Trackers, which show runs elsewhere while they run."""
    from flnl_bench.trackers import TRACKERS

    return [_row(tracker.name, tracker.help, plugin) for tracker, plugin in _entries(TRACKERS)]


def _plugins() -> _Rows:
    """Plugins: version, origin, and the entries of each, or why it cannot be used."""
    from flnl_bench.methods import default_methods

    registry = default_methods()
    rows = []
    for plugin, source in registry.sources.items():
        added = {
            kind: [name for name, origin in table.origin.items() if origin == plugin]
            for kind, table in registry.tables.items()
        }
        entries = [
            f"{'' if kind == 'methods' else kind + ' '}{', '.join(names)}"
            for kind, names in added.items()
            if names
        ]
        failed = registry.failed.get(plugin)
        state = f"not loaded: {failed}" if failed else "; ".join(entries) or "nothing"
        origin = source.where if source.file else f"{source.owner} {source.version}".rstrip()
        about = {"distribution": source.owner, "version": source.version, "source": source.where}
        rows.append(
            {"name": plugin, "description": f"from {origin}: {state}", "failed": failed, **about, **added}
        )
    return rows


LISTS: dict[str, Callable[[], _Rows]] = {
    "methods": _methods,
    "datasets": _datasets,
    "settings": _settings,
    "partitions": _partitions,
    "models": _models,
    "presets": _presets,
    "suites": _suites,
    "trackers": _trackers,
    "plugins": _plugins,
}


def _entries(table: Registry[_Entry]) -> list[tuple[_Entry, str]]:
    """Return the entries of a kind, each with its plugin."""
    full = table.complete()
    return [(entry, full.origin[name]) for name, entry in full.items()]


def _row(name: str, description: str, plugin: str) -> dict[str, Any]:
    return {"name": name, "description": description, "plugin": plugin}


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar=f"[{'|'.join((*LISTS, 'runs'))}]",
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
    with_published: WithPublished = False,
    plugin: options.PluginFiles = None,
    as_json: options.Json = False,
) -> None:
    """List methods, data sets, settings, partitions, models, presets, suites, trackers, plugins; or runs."""
    only = {"method": method, "dataset": dataset, "partition": partition, "setting": setting}
    only["preset"] = preset
    if kind == "runs":
        wanted = {name: given or [] for name, given in only.items()}
        list_runs(folder or RUNS, status or [], wanted, as_json, with_published)
        return
    only_runs = {**only, "status": status, "runs": folder, "with-published": with_published}
    given = [name for name, value in only_runs.items() if value]
    if given:
        raise BadInput(f"--{given[0]} chooses runs: `flnl-bench list runs --{given[0]} …`")
    if kind is not None and kind not in LISTS:
        raise unknown("kind", kind, (*LISTS, "runs"))
    options.use_plugins(plugin)
    from flnl_bench.registry import installed

    tables = {name: LISTS[name]() for name in ([kind] if kind else LISTS)}
    for problem in installed().problems:
        note(f"warning: {problem}")
    if as_json:
        print_json(tables)
        return
    for number, (name, rows) in enumerate(tables.items()):
        if number:
            print()
        print_rows(name, rows)


def list_runs(
    folder: Path,
    status: Sequence[str],
    only: Mapping[str, Sequence[str]],
    as_json: bool,
    with_published: bool = False,
) -> None:
    """List the runs of a results folder, or those with some statuses."""
    from flnl_bench.cli.results import warn_files
    from flnl_bench.leaderboards.comparability import chosen
    from flnl_bench.leaderboards.pandas_api import check_folder, load_results
    from flnl_bench.leaderboards.terminal import width_here

    if folder != RUNS or not with_published:
        check_folder(folder)
    results = load_results(folder, with_published=with_published, whole=False)
    records = results.records
    warn_files(results.problems, "not listed: ")
    if not records:
        raise BadInput(f"there is no run below {folder}")
    listed = [_run_row(record) for record in chosen(_having(records, status), only)]
    if as_json:
        print_json({"runs": listed})
        return
    numeric = ("seed", "last-10", "best")
    shown = table("run", "method", "where", *numeric, "status", right=numeric)
    for row in listed:
        where = " · ".join(row[name] for name in ("dataset", "partition", "setting", "preset"))
        numbers = [percent(row[name]) if row["status"] == "done" else "" for name in ("last10", "best")]
        status = f"{row['status']}: {row['error']}" if row["error"] else row["status"]
        shown.add_row(row["run_dir"][-HASH:], row["method"], where, str(row["seed"]), *numbers, status)
    shown.columns[0].no_wrap = True  # `show` takes it
    console = stdout()
    console.width = width_here()
    console.print(shown)
    # Only below results/runs is the end of a name enough.
    takes = "the first column" if folder == RUNS else "their folders, which --json has"
    note(f"{len(listed)} of {len(records)} runs below {folder}; `flnl-bench show` takes {takes}")


def _having(records: Sequence[RunRecord], statuses: Sequence[str]) -> Sequence[RunRecord]:
    """Return the records with one of some statuses; all if none is given."""
    for status in statuses:
        if status not in RUN_STATUSES:
            raise unknown("status", status, RUN_STATUSES)
    selected = [record for record in records if record.status in statuses] if statuses else records
    if not selected:
        raise BadInput(f"no run has the status {' or '.join(statuses)}")
    return selected


def _run_row(record: RunRecord) -> dict[str, Any]:
    """Return the values of a run that --json has."""
    return {
        **record.config.names,
        "status": record.status,
        "rounds": record.summary.rounds if record.summary else 0,
        "last10": record.last10,
        "best": record.best,
        "error": record.error,
        "run_dir": str(record.folder),
    }


def print_rows(kind: str, rows: _Rows) -> None:
    """Print a table of names and descriptions."""
    rows_table = table("name", "description", title=kind)
    rows_table.show_header = False
    rows_table.columns[0].min_width = 18  # the tables of all kinds line up
    rows_table.columns[0].no_wrap = True
    for row in rows:
        rows_table.add_row(row["name"], "\n".join(_lines(row)))
    stdout().print(rows_table)


def _lines(row: Mapping[str, Any]) -> list[str]:
    """Return the description of a name as lines; --json has more."""
    titled = row.get("title", row["name"]) != row["name"]
    lines = [f"{row['title']}: {row['description']}" if titled else row["description"]]
    if row.get("source") and "failed" not in row:
        lines[0] += f" · {row['source']}"
    if row.get("reference"):
        lines.append(row["reference"])
    lines += [f",{option}" for option in row.get("options", ())]
    if row.get("assumes"):
        lines.append(f"assumes: {', '.join(row['assumes'])}")
    if row.get("variants"):
        lines.append(f"variants: {', '.join(row['variants'])}")
    known = row.get("hyperparameters", {})
    if known:
        lines.append(
            "--set: "
            + ", ".join(
                f"{key}={about['default']}" + (f" ({about['range']})" if about["range"] else "")
                for key, about in known.items()
            )
        )
    for name, values in row.get("variants", {}).items():
        own = ", ".join(f"{key}={value}" for key, value in values.items() if key not in known)
        lines += [f"{name} --set: {own}"] if own else []
    return lines
