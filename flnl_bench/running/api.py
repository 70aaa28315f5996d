"""Runs and scenarios from Python; `flnl-bench run` and `flnl-bench scenario` call these functions."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flnl_bench.config import check_seed, check_seeds, training_changes
from flnl_bench.data import LoadProgress, dataset_name
from flnl_bench.errors import (
    BadInput,
    BrokenContract,
    MethodFailed,
    MissingData,
    of_machine,
    one_line,
    place_in,
    require,
    unknown,
)
from flnl_bench.results.run_record import RUN_FILE, RunRecord, read_last_round
from flnl_bench.running.options import OPTION_NAMES, AnyPath, RunOptions, as_path
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import cached_dataset, prepare, protocol
from flnl_bench.scenario import Scenario, generate, parse_partition, parse_setting, stage

if TYPE_CHECKING:
    from flnl_bench.running.runner import RoundCallback, Runner


def run(
    method: str,
    setting: str | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    dataset: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    samples: int | None = None,
    seed: int = 1,
    scenario: AnyPath | None = None,
    preset: str = "quick",
    rounds: int | None = None,
    fraction: float | None = None,
    drop: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    model: str | None = None,
    norm: str | None = None,
    pretrained: bool | None = None,
    precision: str | None = None,
    compile: str | None = None,
    stack: int | None = None,
    device: str = "auto",
    devices: Sequence[str] | None = None,
    workers: int | None = None,
    state: str = "auto",
    data_dir: AnyPath | None = None,
    out: AnyPath = "results/runs",
    fresh: bool = False,
    save_model: bool = False,
    checkpoint_every: int | str = 1,
    keep_checkpoints: int | None = None,
    tracker: str | Sequence[str] = (),
    progress: RoundCallback | bool | None = None,
    loading: LoadProgress | None = None,
    **training: Any,
) -> RunRecord:
    """Run a method on a scenario, or resume it; a finished run is read, not run again.

    An option that is None comes from the preset. Nothing is printed.

    Args:
        method: the name of a method or variant, as in "fedgr" or "fedgr/no-sieve".
        setting: the label noise, as in "sym-1.0"; required unless `scenario` is given.
        set: changed hyper-parameters of the method.
        dataset: the name of a data set, "digits" if none is given, or "npz:PATH" or "folder:PATH".
        partition: the clients of the images, "iid" if none is given.
        clients: the number of clients.
        samples: the number of train images, a random subset.
        seed: of all draws.
        scenario: an exported scenario, instead of setting, data set, partition, clients and samples.
        preset: "quick", "medium", "paper" or a TOML file: the protocol, which the following options change.
        rounds: the number of rounds.
        fraction: the share of the clients per round.
        drop: the chance of a sampled client not to answer in a round.
        epochs: local epochs.
        batch_size: local batch size.
        lr: local learning rate.
        model: the network.
        norm: its normalisation, "batch" or "group".
        pretrained: start from ImageNet weights (resnet50).
        precision: "float32", "tf32" or "bfloat16".
        compile: "off", "default" (torch.compile) or "cudagraphs".
        stack: the number of clients that train together as one network; 1: one after the other.
        device: "auto", "cpu", "cuda" or "mps".
        devices: of the clients of a round, as in ["cuda:0", "cuda:1"]; changes no number.
        workers: processes that share the clients of a round; changes no number.
        state: where clients' states are kept, "device", "host", "disk", or "auto": on the GPU while they fit.
        data_dir: the folder of the data sets; else FLNL_DATA, else a cache folder.
        out: the folder of the runs.
        fresh: run again, even if the run is finished.
        save_model: keep the final and the best global weights, for `load_model`.
        checkpoint_every: rounds between two checkpoints, or seconds as in "30s"; changes no number.
        keep_checkpoints: keep the checkpoint after every N-th round, so that `verify` can repeat late rounds.
        tracker: "tensorboard", "mlflow", "wandb" or a plugin's, or several; a failing one is dropped.
        progress: True shows round and accuracy on stderr; a function is called with each finished round, as
            a row of rounds.jsonl.
        loading: called as (what, done, total) while a large data set is decoded.
        training: any other value of the protocol, as in momentum=0.9.

    Raises:
        BadInput: an option is not possible; the message says which values are.
        MissingData: the data set is missing and could not be fetched.
        MethodFailed: the method raised an error; the message names file and line.
    """
    options = dict(locals())  # before there are other names
    options |= options.pop("training")
    del options["seed"]
    (result,) = run_seeds(seeds=[seed], **options)
    return result


def run_seeds(
    method: str,
    setting: str | None = None,
    *,
    seeds: Iterable[int],
    fresh: bool = False,
    progress: RoundCallback | bool | None = None,
    **options: Any,
) -> list[RunRecord]:
    """Run a method with several seeds; all runs are checked before the first one starts.

    Args:
        method: the name of a method or variant.
        setting: the label noise.
        seeds: one run each.
        fresh: run again, even finished runs.
        progress: True, or called with each finished round, as in `run`.
        options: the other options of `run`.
    """
    require("seed" not in options, "seed", options.get("seed"), "left out where seeds are given")
    loading = options.pop("loading", None)
    for name in options.keys() - OPTION_NAMES:
        raise unknown("option", name, {*OPTION_NAMES, "fresh", "progress", "loading"})
    require(
        progress is None or isinstance(progress, bool) or callable(progress),
        "progress",
        repr(progress),
        "True or a function",
    )
    asked = {"method": method, "setting": setting, **options}
    records = []
    for runner in prepare_seeds(check_seeds(seeds), asked, loading=loading):
        for note in () if fresh else runner.notes():
            warnings.warn(note, stacklevel=2)
        callback = _show_rounds(runner) if progress is True else progress or None
        records.append(finish(runner, fresh=fresh, progress=callback))
    return records


def _show_rounds(runner: Runner) -> RoundCallback:
    """Return a callback that keeps one line on stderr up to date, in a terminal and in a notebook."""
    config = runner.config

    def show(row: Mapping[str, Any]) -> None:
        number, rounds = row["round"] + 1, config.training.rounds
        accuracy = "unknown" if row["accuracy"] is None else f"{row['accuracy']:.2f} %"
        text = f"\r{config.title}: round {number} of {rounds}, accuracy {accuracy}   "
        print(text, end="\n" if number == rounds else "", file=sys.stderr, flush=True)

    return show


def make_scenario(
    dataset: str = "digits",
    partition: str = "iid",
    setting: str = "sym-1.0",
    preset: str = "quick",
    clients: int | None = None,
    samples: int | None = None,
    seed: int = 1,
    data_dir: AnyPath | None = None,
    loading: LoadProgress | None = None,
) -> Scenario:
    """Return the scenario of a run with the same options; the arguments are those of `run`."""
    for option, given in {"dataset": dataset, "partition": partition, "setting": setting}.items():
        require(isinstance(given, str), option, repr(given), "a name")
    name, split, noise = dataset_name(dataset), parse_partition(partition), parse_setting(setting)
    asked = {"clients": clients, "samples": samples}
    changes = training_changes({k: v for k, v in asked.items() if v is not None})
    training = protocol(load_preset(preset), name, changes)
    loaded = stage(cached_dataset(name, as_path(data_dir), loading), noise.name, as_path(data_dir), loading)
    return generate(
        loaded,
        split.name,
        noise.name,
        training.clients,
        check_seed(seed),
        training.samples,
        changes.get("samples"),
    )


# -- two steps, for the commands ---------------------------------------------------------------------
def prepare_seeds(
    seeds: Sequence[int], asked: Mapping[str, Any], *, dashes: str = "", loading: LoadProgress | None = None
) -> list[Runner]:
    """Check and prepare the runs of all seeds; nothing is written.

    Args:
        seeds: one run each.
        asked: the other options of `run`, by name.
        dashes: "--" for messages to users of the command line.
        loading: called as (what, done, total) while a large data set is decoded.
    """
    options = RunOptions.of(asked, dashes)
    return [prepare(replace(options, seed=seed), progress=loading) for seed in seeds]


def finish(runner: Runner, *, fresh: bool = False, progress: RoundCallback | None = None) -> RunRecord:
    """Run or resume a run; an error of its method is raised with file and line."""
    errors_of_callback: list[BaseException] = []

    def report(row: Mapping[str, Any]) -> None:
        try:
            if progress:
                progress(row)
        except BaseException as error:
            errors_of_callback.append(error)
            raise

    try:
        return runner.run(fresh=fresh, progress=report)
    except (BadInput, MissingData):
        raise
    except Exception as error:
        if errors_of_callback:  # not the method's, whatever the runner made of it
            raise errors_of_callback[0] from None
        record = runner.folder.read()
        recorded = record is not None and record.status == "failed"
        if isinstance(error, OSError) and not recorded:
            if not of_machine(error):
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise BadInput(
                f"{where}{error.strerror}; the run is interrupted, and the same command resumes it"
            ) from error
        where = f"; the traceback is in {runner.folder.path / RUN_FILE}" if recorded else ""
        raise MethodFailed(_mistake(runner, error) + where) from error


def _mistake(runner: Runner, error: Exception) -> str:
    """Say in one line what failed in a method, and where."""
    if isinstance(error, BrokenContract):
        return str(error)  # names method and hook
    home = ""
    with contextlib.suppress(OSError, TypeError):  # a class that was made in a session has no file
        home = inspect.getfile(type(runner.method))
    place = place_in("".join(traceback.format_exception(error)), home)
    last = read_last_round(runner.folder.path)
    number = 1 if last is None else last["round"] + 2
    return f"{runner.config.method} failed in round {number}: {one_line(error)} ({place})"
