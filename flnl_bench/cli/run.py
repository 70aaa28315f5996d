"""`flnl-bench run`: one method on one scenario, for one seed or several."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flnl_bench.cli import options
from flnl_bench.cli.console import note, print_json, reporting, waiting
from flnl_bench.cli.options import (
    FILES,
    METHOD,
    PLACE,
    PROTOCOL,
    SCENARIO,
    check_source,
    flag,
    option,
    parse_changes,
    parse_seeds,
)
from flnl_bench.cli.outcome import divergence
from flnl_bench.errors import BadInput, BrokenContract, MissingData, one_line, place_in

if TYPE_CHECKING:
    from flnl_bench.recorder.record import RunRecord
    from flnl_bench.runs.play import Run


def protocol(metavar: str, text: str, *names: str) -> Any:
    """An option that changes the preset's protocol."""
    return option(PROTOCOL, metavar, text, *names, default="preset")


class Interrupted(Exception):
    """Ctrl-C or SIGTERM in the middle of a run; says how to go on."""


class Failed(Exception):
    """A mistake in a method; says where."""


def run(
    method: Annotated[str, option(METHOD, "NAME", "Method or variant; `flnl-bench list methods` shows all.")],
    changes: Annotated[
        list[str] | None, option(METHOD, "KEY=VALUE", "Change a hyper-parameter; repeatable.", "--set")
    ] = None,
    setting: options.Setting = None,
    dataset: options.Dataset = None,
    partition: options.Partition = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    seeds: Annotated[
        str | None,
        option(SCENARIO, "1,13,42", "Several runs: mean and sample standard deviation (ddof 1)."),
    ] = None,
    scenario: options.ScenarioFile = None,
    preset: options.PresetName = "quick",
    rounds: Annotated[int | None, protocol("N", "Rounds.")] = None,
    fraction: Annotated[float | None, protocol("F", "Share of the clients in a round.")] = None,
    epochs: Annotated[int | None, protocol("E", "Local epochs.")] = None,
    batch_size: Annotated[int | None, protocol("B", "Local batch size.")] = None,
    lr: Annotated[float | None, protocol("X", "Local learning rate.")] = None,
    model: Annotated[str | None, protocol("NAME", "Network; `list models`.")] = None,
    norm: Annotated[str | None, protocol("NAME", "Normalisation: batch or group.")] = None,
    pretrained: Annotated[
        bool | None, protocol("", "Start from ImageNet weights (resnet50).", "--pretrained/--no-pretrained")
    ] = None,
    precision: Annotated[str | None, protocol("NAME", "float32, tf32 or bfloat16.")] = None,
    compiled: Annotated[
        str | None, protocol("MODE", "torch.compile: off, default or cudagraphs.", "--compile")
    ] = None,
    device: Annotated[str, option(PLACE, "NAME", "auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[
        str | None, option(PLACE, "LIST", "Devices for the clients of a round, as cuda:0,cuda:1.")
    ] = None,
    workers: Annotated[
        int | None, option(PLACE, "N", "Processes that share the clients of a round.", min=1)
    ] = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the runs.")] = Path("results/runs"),
    fresh: Annotated[bool, flag(FILES, "Start anew, even if the run is finished.", "--fresh")] = False,
    as_json: options.Json = False,
) -> None:
    """Run a method on a scenario.

    What is not given comes from the preset. An interrupted run goes on where it stopped.
    """
    chosen = parse_seeds(seed, seeds)
    own = {"--dataset": dataset, "--partition": partition, "--setting": setting, "--clients": clients}
    check_source(scenario, {**own, "--samples": samples})
    training = {
        "clients": clients,
        "samples": samples,
        "rounds": rounds,
        "fraction": fraction,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "model": model,
        "norm": norm,
        "pretrained": pretrained,
        "precision": precision,
        "compile": compiled,
    }
    asked: dict[str, Any] = {
        "method": method,
        "setting": setting,
        "dataset": dataset,
        "partition": partition,
        "preset": preset,
        "device": device,
        "devices": devices and tuple(devices.split(",")),
        "workers": workers,
        "training": {name: value for name, value in training.items() if value is not None},
        "changes": parse_changes(changes or []),
        "scenario": scenario,
        "data_dir": data_dir,
        "out": out,
    }
    runs = prepare_all({name: value for name, value in asked.items() if value is not None}, chosen)
    records = [play(each, fresh) for each in runs]
    for record in records:
        if when := divergence(record.summary):
            note(f"warning: {method}: {when}")
    if dataset is None and scenario is None:
        note(
            f"this was digits; the paper's protocol: flnl-bench run --method {method} "
            f"--setting {setting} --preset paper --dataset cifar10"
        )
    report(runs, records, several=seeds is not None, as_json=as_json)


def prepare_all(asked: Mapping[str, Any], seeds: list[int]) -> list[Run]:
    """Check and prepare the runs of all seeds before anything is written."""
    with waiting("preparing"):
        from flnl_bench.registry import default_registry
        from flnl_bench.runs.resolve import Request, prepare

        for problem in default_registry().problems:
            note(f"warning: {problem}")
        progress = reporting()
        return [prepare(Request(seed=seed, **asked), progress=progress) for seed in seeds]


def play(run: Run, fresh: bool) -> RunRecord:
    """Run or resume, with progress on stderr."""
    from flnl_bench.cli.console import watching

    total, path = run.config.training.rounds, run.folder.path
    done = 0 if fresh else run.checkpoint.finished_rounds
    if not fresh and run.finished():
        note(f"found finished in {path} (use --fresh to run it again)")
    if not fresh and run.code_changed:
        note(
            f"warning: the code of {run.config.method} has changed since {path} was begun; "
            "--fresh starts anew"
        )
    try:
        with watching(f"{run.config.method} s{run.config.seed}", total, done) as watch:
            return run.play(fresh=fresh, progress=watch)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after round {run.checkpoint.finished_rounds} of {total}; the same command "
            f"{'without --fresh ' if fresh else ''}goes on from there"
        ) from None
    except (BadInput, MissingData):
        raise
    except Exception as error:
        record = run.folder.read()
        recorded = record is not None and record.status == "failed"
        if isinstance(error, OSError) and not recorded:
            raise
        what = str(error)  # a broken contract names method and hook
        if not isinstance(error, BrokenContract):
            number = run.checkpoint.finished_rounds + 1
            place = place_in(traceback.format_exc(), inspect.getfile(type(run.method)))
            what = f"{run.config.method} failed in round {number}: {one_line(error)} ({place})"
        raise Failed(what + f"; the traceback is in {path / 'run.json'}" * recorded) from None


def report(runs: list[Run], records: list[RunRecord], *, several: bool, as_json: bool) -> None:
    """Print the outcome."""
    from flnl_bench.cli.outcome import as_object, over_seeds, print_run, print_seeds

    objects = [as_object(record, run.folder.path) for run, record in zip(runs, records, strict=True)]
    if as_json:
        print_json(over_seeds(objects) if several else objects[0])
    elif several:
        print_seeds(objects)
    else:
        print_run(records[0], runs[0].folder.read_rounds(), runs[0].folder.path)
