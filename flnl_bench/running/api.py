"""Runs and scenarios from Python; `flnl-bench run` and `flnl-bench scenario` call what is here."""

from __future__ import annotations

import contextlib
import inspect
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.config import TRAINING, as_set, plain, training_changes
from flnl_bench.data import LoadProgress, dataset_name
from flnl_bench.errors import (
    BadInput,
    BrokenContract,
    MethodFailed,
    MissingData,
    one_line,
    place_in,
    require,
    unknown,
)
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import Request, cached_dataset, check_source, generate, prepare, protocol
from flnl_bench.running.result import RunResult
from flnl_bench.scenario import Scenario, parse_partition, parse_setting, stage

if TYPE_CHECKING:
    from flnl_bench.running.runner import RoundCallback, Run

Anywhere = str | PathLike[str]  # a file or folder

PATHS = ("scenario", "data_dir", "out")
OPTIONS = ({part.name for part in fields(Request)} - {"training", "changes", "label", "seed"}) | {
    "set",
    *TRAINING,
}


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
    scenario: Anywhere | None = None,
    preset: str = "quick",
    rounds: int | None = None,
    fraction: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    model: str | None = None,
    norm: str | None = None,
    pretrained: bool | None = None,
    precision: str | None = None,
    compile: str | None = None,
    device: str = "auto",
    devices: Sequence[str] | None = None,
    workers: int | None = None,
    data_dir: Anywhere | None = None,
    out: Anywhere = "results/runs",
    fresh: bool = False,
    save_model: bool = False,
    tracker: str | Sequence[str] = (),
    progress: RoundCallback | None = None,
    loading: LoadProgress | None = None,
    **training: Any,
) -> RunResult:
    """Run a method on a scenario, or go on with it; a finished run is found, not run again.

    What is None comes from the preset. Nothing is printed.

    Args:
        method: the name of a method or variant, as in "fedgr" or "fedgr/no-sieve".
        setting: the label noise, as in "sym-1.0"; needed unless `scenario` is given.
        set: changed hyper-parameters of the method.
        dataset: the name of a data set, "digits" if none is given, or "npz:PATH" or "folder:PATH".
        partition: who holds which images, "iid" if none is given.
        clients: the number of clients.
        samples: train on a random subset of so many images.
        seed: of all draws.
        scenario: an exported scenario, instead of setting, data set, partition, clients and samples.
        preset: "quick", "paper" or a TOML file, the protocol that the following change.
        rounds: the number of rounds.
        fraction: the share of the clients in a round.
        epochs: local epochs.
        batch_size: local batch size.
        lr: local learning rate.
        model: the network.
        norm: its normalisation, "batch" or "group".
        pretrained: start from ImageNet weights (resnet50).
        precision: "float32", "tf32" or "bfloat16".
        compile: the mode of torch.compile: "off", "default" or "cudagraphs".
        device: "auto", "cpu", "cuda" or "mps".
        devices: of the clients of a round, as in ["cuda:0", "cuda:1"]; changes no number.
        workers: processes that share the clients of a round; changes no number.
        data_dir: the folder of the data sets; else FLNL_DATA, else a cache folder.
        out: the folder of the runs.
        fresh: start anew, even if the run is finished.
        save_model: keep the final and the best global weights, for `load_model`.
        tracker: "tensorboard", "mlflow", "wandb" or a plugin's, or several; one that fails is given up.
        progress: called with each finished round, as a row of rounds.jsonl.
        loading: called as (what, done, total) while a large data set is decoded.
        training: any other value of the protocol, as in momentum=0.9.

    Raises:
        BadInput: something asked for is not possible; the message says what is.
        MissingData: the data set is not there and could not be fetched.
        MethodFailed: the method has a mistake; the message names file and line.
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
    progress: RoundCallback | None = None,
    **options: Any,
) -> list[RunResult]:
    """The same run for several seeds; all of them are checked before the first one starts.

    Args:
        method: the name of a method or variant.
        setting: the label noise.
        seeds: one run each.
        fresh: start anew, even what is finished.
        progress: called with each finished round.
        options: whatever else `run` takes.
    """
    require("seed" not in options, "seed", options.get("seed"), "left out where seeds are given")
    is_list = isinstance(seeds, Iterable) and getattr(seeds, "ndim", 1) > 0
    several = [check_seed(seed) for seed in seeds] if is_list else []
    fits = 0 < len(several) == len({*several})
    require(fits, "seeds", repr(seeds), "a list of whole numbers, none of them twice")
    results = []
    for each in prepare_seeds(several, method=method, setting=setting, **options):
        for told in () if fresh else what_is_found(each):
            warnings.warn(told, stacklevel=2)
        results.append(finish(each, fresh=fresh, progress=progress))
    return results


def make_scenario(
    dataset: str = "digits",
    partition: str = "iid",
    setting: str = "sym-1.0",
    preset: str = "quick",
    clients: int | None = None,
    samples: int | None = None,
    seed: int = 1,
    data_dir: Anywhere | None = None,
    loading: LoadProgress | None = None,
) -> Scenario:
    """The federation that a run of the same options trains on; the arguments are those of `run`."""
    for what, given in {"dataset": dataset, "partition": partition, "setting": setting}.items():
        require(isinstance(given, str), what, repr(given), "a name")
    name, split, noise = dataset_name(dataset), parse_partition(partition), parse_setting(setting)
    asked = {"clients": clients, "samples": samples}
    changes = training_changes({k: v for k, v in asked.items() if v is not None})
    training = protocol(load_preset(preset), name, changes)
    loaded = stage(cached_dataset(name, _path(data_dir), loading), noise.name, _path(data_dir), loading)
    return generate(
        loaded,
        split.name,
        noise.name,
        training.clients,
        check_seed(seed),
        training.samples,
        changes.get("samples"),
    )


# -- in two steps, for the commands ------------------------------------------------------------------
def prepare_seeds(seeds: Iterable[int], *, loading: LoadProgress | None = None, **options: Any) -> list[Run]:
    """The checked and prepared runs of all seeds; nothing is written.

    Args:
        seeds: one run each.
        loading: called as (what, done, total) while a large data set is decoded.
        options: whatever else `run` takes.
    """
    request = _request({name: plain(value) for name, value in options.items() if value is not None})
    return [prepare(replace(request, seed=check_seed(seed)), progress=loading) for seed in seeds]


def finish(run: Run, *, fresh: bool = False, progress: RoundCallback | None = None) -> RunResult:
    """Play what is left of a run; a mistake in its method is told with file and line."""
    mistakes_of_others = []

    def tell(row: Mapping[str, Any]) -> None:
        try:
            if progress:
                progress(row)
        except Exception as error:
            mistakes_of_others.append(error)
            raise

    try:
        played = run.play(fresh=fresh, progress=tell)
    except (BadInput, MissingData):
        raise
    except Exception as error:
        if error in mistakes_of_others:
            raise
        record = run.folder.read()
        recorded = record is not None and record.status == "failed"
        if isinstance(error, OSError) and not recorded:
            raise
        where = f"; the traceback is in {run.folder.path / 'run.json'}" if recorded else ""
        raise MethodFailed(_mistake(run, error) + where) from error
    return RunResult(played, run.folder.path)


def what_is_found(run: Run) -> list[str]:
    """What to say of the run that is there: made by other code, or without what is asked for."""
    told, path = [], run.folder.path
    if names := ", ".join(run.changed_code):
        told.append(f"the code of {names} has changed since {path} was begun; --fresh starts anew")
    if run.save_model and run.finished() and not (path / "final.safetensors").exists():
        told.append(f"{path} was played without --save-model; --fresh plays it again")
    return told


def _request(given: dict[str, Any]) -> Request:
    """Flat options, as a user gives them, as a request."""
    for name in given.keys() - OPTIONS:
        raise unknown("option", name, OPTIONS | {"seed", "fresh", "progress"})
    require(isinstance(given.get("method"), str), "method", repr(given.get("method")), "a name")
    check_source(given)
    check_kinds(given)
    for name in given.keys() & {*PATHS}:
        given[name] = _path(given[name], name)
    changes = {name: as_set(value, f"set {name}") for name, value in given.pop("set", {}).items()}
    training = training_changes({name: given.pop(name) for name in TRAINING if name in given})
    devices = given.pop("devices", ())
    devices = devices.split(",") if isinstance(devices, str) else devices
    trackers = given.pop("tracker", ())
    trackers = (trackers,) if isinstance(trackers, str) else tuple(trackers)
    return Request(**given, devices=tuple(devices), tracker=trackers, changes=changes, training=training)


def check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse options that are no names, paths, numbers or tables where they must be."""
    for name in given.keys() & {"method", "setting", "dataset", "partition", "preset", "device"}:
        require(isinstance(given[name], str), name, repr(given[name]), "a name")
    for name in given.keys() & {*PATHS}:
        _path(given[name], name)
    workers = given.get("workers")
    require(workers is None or type(workers) is int, "workers", repr(workers), "a whole number from 1")
    require(isinstance(given.get("set", {}), Mapping), "set", repr(given.get("set")), "values by name")
    saved = given.get("save_model", False)
    require(type(saved) is bool, "save_model", repr(saved), "true or false")
    for name in given.keys() & {"devices", "tracker"}:
        value = given[name]
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        require(fits, name, repr(value), "a name, or a list of names")


def _path(path: Anywhere | None, name: str = "data_dir") -> Path | None:
    require(
        path is None or isinstance(path, str | PathLike), name, repr(path), "the path of a file or folder"
    )
    return None if path is None else Path(path).expanduser()


def check_seed(seed: int) -> int:
    """A seed as a number of Python, or an error."""
    seed = plain(seed)
    fits = type(seed) is int and 0 <= seed < 2**63
    require(fits, "seed", repr(seed), "a whole number from 0 to 2^63 - 1")
    return seed


def _mistake(run: Run, error: Exception) -> str:
    """What a method did wrong, and where."""
    if isinstance(error, BrokenContract):
        return str(error)  # names method and hook
    home = ""
    with contextlib.suppress(OSError, TypeError):  # a class that was made in a session has no file
        home = inspect.getfile(type(run.method))
    place = place_in("".join(traceback.format_exception(error)), home)
    number = run.checkpoint.finished_rounds + 1
    return f"{run.config.method} failed in round {number}: {one_line(error)} ({place})"
