"""`flnl-bench run`: one method on one scenario, for one seed or several."""

from __future__ import annotations

import contextlib
import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import (
    Interrupted,
    note,
    percent,
    print_json,
    reporting,
    waiting,
    warn_plugins,
    watching,
)
from flnl_bench.cli.options import (
    DEVICES,
    FILES,
    METHOD,
    PROTOCOL,
    SCENARIO,
    flag,
    option,
    parse_changes,
    parse_seeds,
    parse_training,
    use_plugins,
)
from flnl_bench.cli.outcome import divergence
from flnl_bench.cli.runs import RUNS
from flnl_bench.errors import BadInput, MethodFailed

if TYPE_CHECKING:
    from flnl_bench.results.run_record import RunRecord
    from flnl_bench.running.runner import Runner


def _protocol(metavar: str, text: str, *names: str, default: str = "preset") -> Any:
    """Declare an option that changes the preset's protocol."""
    return option(PROTOCOL, metavar, text, *names, default=default)


def run_command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Run file: these options in TOML; what is given here wins."),
    ] = None,
    method: Annotated[
        str | None,
        option(
            METHOD,
            "NAME",
            "Method or variant; `flnl-bench list methods` shows all.",
            autocompletion=completion.methods,
        ),
    ] = None,
    plugin: options.PluginFiles = None,
    set: Annotated[
        list[str] | None, option(METHOD, "KEY=VALUE", "Change a hyper-parameter; repeatable.", "--set")
    ] = None,
    setting: options.SettingName = None,
    dataset: options.DatasetName = None,
    partition: options.PartitionName = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    seeds: Annotated[
        str | None,
        option(SCENARIO, "1,13,42", "Several runs: mean and sample standard deviation (ddof 1)."),
    ] = None,
    scenario: options.ScenarioFile = None,
    preset: Annotated[
        str | None,
        option(
            PROTOCOL,
            "NAME",
            "quick, medium, paper or FILE.toml; `list presets`.",
            default="quick",
            autocompletion=completion.presets,
        ),
    ] = None,
    rounds: Annotated[int | None, _protocol("N", "Rounds.")] = None,
    fraction: Annotated[float | None, _protocol("F", "Share of the clients per round.")] = None,
    drop: Annotated[
        float | None, _protocol("P", "Chance of a sampled client not to answer in a round.")
    ] = None,
    epochs: Annotated[int | None, _protocol("E", "Local epochs.")] = None,
    batch_size: Annotated[int | None, _protocol("B", "Local batch size.")] = None,
    lr: Annotated[float | None, _protocol("X", "Local learning rate.")] = None,
    model: Annotated[
        str | None,
        option(
            PROTOCOL, "NAME", "Network; `list models`.", default="preset", autocompletion=completion.models
        ),
    ] = None,
    norm: Annotated[str | None, _protocol("NAME", "Normalisation: batch or group.")] = None,
    pretrained: Annotated[
        bool | None, _protocol("", "Start from ImageNet weights (resnet50).", "--pretrained/--no-pretrained")
    ] = None,
    precision: Annotated[str | None, _protocol("NAME", "float32, tf32 or bfloat16.")] = None,
    compile: Annotated[
        str | None, _protocol("MODE", "off, default (torch.compile) or cudagraphs.", "--compile")
    ] = None,
    stack: Annotated[
        int | None, _protocol("N", "Clients that train together as one network; 1: one after the other.")
    ] = None,
    training: Annotated[
        list[str] | None,
        _protocol("KEY=VALUE", "Any value of the protocol, as in momentum=0.9; repeatable."),
    ] = None,
    device: Annotated[str | None, option(DEVICES, "NAME", "auto, cpu, cuda or mps.", default="auto")] = None,
    devices: Annotated[
        str | None, option(DEVICES, "LIST", "Devices for the clients of a round, as cuda:0,cuda:1.")
    ] = None,
    workers: Annotated[
        int | None, option(DEVICES, "N", "Processes that share the clients of a round.", min=1)
    ] = None,
    state: Annotated[
        str | None,
        option(DEVICES, "PLACE", "Clients' states: auto, device, host or disk.", default="auto"),
    ] = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option(FILES, "DIR", "Folder of the runs.", default="results/runs")] = None,
    fresh: Annotated[bool, flag(FILES, "Run again, even if the run is finished.", "--fresh")] = False,
    save_model: options.SaveModel = False,
    checkpoint_every: Annotated[
        str | None,
        option(FILES, "N", "Rounds between checkpoints, or seconds as in 30s.", default="1"),
    ] = None,
    keep_checkpoints: options.KeepCheckpoints = None,
    tracker: options.Trackers = None,
    debug: Annotated[bool, flag(FILES, "Show the whole traceback of a method's mistake.", "--debug")] = False,
    pdb: Annotated[bool, flag(FILES, "Open Python's debugger where a method fails.", "--pdb")] = False,
    as_json: options.Json = False,
) -> None:
    """Run a method on a scenario.

    An option that is not given comes from the preset. An interrupted run resumes where it stopped.
    """
    asked = dict(locals())  # every option by its name, which is that of an argument of the library
    asked["set"] = parse_changes(set or [])
    asked |= parse_training(asked.pop("training") or [], asked)
    chosen = parse_seeds(asked.pop("seed"), asked.pop("seeds")) if (seed, seeds) != (None, None) else None
    for name in ("file", "fresh", "as_json", "debug", "pdb"):
        del asked[name]
    asked, chosen = with_file(file, asked, chosen)
    use_plugins(asked.pop("plugin", None))
    first = next(Path(asked.get("out") or RUNS).rglob("run.json"), None) is None
    newcomer = first and not {"dataset", "scenario"} & asked.keys() and not as_json
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what plugins print is no result
            results = []
            for runner in _prepare(chosen or [1], asked, file):
                results.append(carry_out(runner, fresh))
                if len(chosen or []) > 1:
                    note(seed_line(results[-1]))
    except MethodFailed as error:
        explain(error, debug, pdb)
        raise
    for result in results:
        if text := divergence(result.summary):
            note(f"warning: {result.config.method}: {text}")
    if newcomer:
        words = ["flnl-bench", "run"]
        for name in ("method", "setting", "partition"):
            words += [f"--{name}", str(asked[name])] if name in asked else []
        words += [word for change in set or [] for word in ("--set", change)]
        words += [word for path in plugin or [] for word in ("--plugin", str(path))]
        command = shlex.join([*words, "--preset", "paper", "--dataset", "cifar10"])
        note(f"this was digits; the paper's protocol: {command}")
    report(results, several=len(chosen or []) > 1 or seeds is not None, as_json=as_json)


def with_file(
    file: Path | None, given: dict[str, Any], seeds: list[int] | None
) -> tuple[dict[str, Any], list[int] | None]:
    """Merge a run file with the options of the command line, which win."""
    given = {name: value for name, value in given.items() if value is not None}
    if not given["save_model"]:  # the switch was not given
        del given["save_model"]
    read: dict[str, Any] = {}
    if file is not None:
        from flnl_bench.running.options import SCENARIO_OPTIONS
        from flnl_bench.running.run_file import read_run_file

        read = read_run_file(file)
        seed, several = read.pop("seed", None), read.pop("seeds", None)
        if seed is not None and several is not None:
            raise BadInput(f"{file}: seed and seeds are both given; use one of them")
        seeds = seeds or (several if seed is None else [seed])
        given["set"] = {**read.get("set", {}), **given["set"]}
        if given.keys() & {*SCENARIO_OPTIONS}:
            read.pop("scenario", None)
        if "scenario" in given:
            read = {name: value for name, value in read.items() if name not in SCENARIO_OPTIONS}
        given["plugin"] = [*read.pop("plugin", []), *given.get("plugin", [])]
    if "method" not in (asked := {**read, **given}):
        raise BadInput("missing option '--method', or a run file that has it (see flnl-bench run --help)")
    return asked, seeds


def seed_line(record: RunRecord) -> str:
    """Return the result of one of several seeds in a line."""
    numbers = f"last-10 {percent(record.last10)}, best {percent(record.best)}"
    return f"seed {record.config.seed}: {numbers}"


def explain(error: MethodFailed, debug: bool, pdb: bool) -> None:
    """Show the traceback of a method that failed, or open a debugger there."""
    cause = error.__cause__
    assert cause is not None
    if debug or pdb:
        traceback.print_exception(cause)
    if pdb:
        import pdb as debugger

        debugger.post_mortem(cause.__traceback__)


def _prepare(seeds: list[int], asked: dict[str, Any], file: Path | None) -> list[Runner]:
    """Prepare the runs of all seeds before anything is written; errors name the run file, if there is one."""
    with waiting("preparing"):
        from flnl_bench.running.api import prepare_seeds

        warn_plugins()
        try:
            runners = prepare_seeds(seeds, asked, dashes="--", loading=reporting())
        except BadInput as error:
            raise BadInput(f"{error} (with the options of {file})" if file else str(error)) from error
    for runner in runners:
        runner.warn = lambda text: note(f"warning: {text}")
    return runners


def carry_out(runner: Runner, fresh: bool) -> RunRecord:
    """Run or resume, with progress on stderr."""
    from flnl_bench.running.api import finish

    config = runner.config
    done = 0 if fresh else runner.checkpoint.finished_rounds
    if not fresh and runner.finished():
        note(f"found finished in {runner.folder.path} (--fresh runs it again)")
    if config.training.sampled_clients == 1 < config.training.clients:
        note(
            f"warning: 1 of {config.training.clients} clients per round, because the fraction is "
            f"{config.training.fraction:g}; --fraction changes it"
        )
    for text in () if fresh else runner.notes():
        note(f"warning: {text}")
    try:
        with watching(f"{config.method} s{config.seed}", config.training.rounds, done) as watch:
            return finish(runner, fresh=fresh, progress=watch)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after round {runner.checkpoint.finished_rounds} of {config.training.rounds}; "
            f"the same command {'without --fresh ' if fresh else ''}resumes it"
        ) from None


def report(results: list[RunRecord], *, several: bool, as_json: bool) -> None:
    """Print the outcome."""
    from flnl_bench.cli.outcome import as_object, over_seeds, print_run, print_seeds

    if not several and not as_json:
        (result,) = results
        print_run(result)
        return
    objects = [as_object(result) for result in results]
    if as_json:
        print_json(over_seeds(objects) if several else objects[0])
    else:
        print_seeds(objects)
