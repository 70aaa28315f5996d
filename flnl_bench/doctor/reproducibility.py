"""Training on the small data of the tests: repeated, resumed, compared with the CPU, with options of torch.

An option of torch is tried in its own process, because a crash of that process is a result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from flnl_bench.api import Method, Weights
from flnl_bench.doctor.check_result import REPORT, CheckResult, DoctorOptions
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import Devices, check_precision, choose_devices, to_cpu
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput, one_line
from flnl_bench.methods import default_methods
from flnl_bench.processes import start_worker
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset, toy_scenario
from flnl_bench.testing.worlds import World

TRIED_METHOD = "fedgr"  # it uses most parts of the engine: states, views, a teacher, a mixture
TRIED_ROUNDS = 4  # of which two are warm-up
ROUNDING = 1e-3  # relative to the largest weight, after one round in float32
SHORT_RUN = {"rounds": 3, "epochs": 1}  # short, because all methods are tried
UNEQUAL = f"runs cannot be repeated here: {REPORT}"
TIME_LIMIT = 120.0  # seconds for one option of torch, most of them for compiling on a slow machine
ONLY_CUDA = (("precision", "tf32"), ("compile", "cudagraphs"))
# One client and batches of one size, so that each function is compiled once; several steps, to repeat one.
SMALL_ROUND = {"fraction": 0.1, "epochs": 3, "batch_size": 30}
ON_CUDA = "set CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment and try again; if the result is the same, "


@dataclass(frozen=True)
class TrainedRounds:
    """The records and the final weights of a few rounds."""

    rows: list[dict[str, Any]]
    weights: Weights  # on the CPU

    def difference(self, other: TrainedRounds) -> str | None:
        """Return the first difference from other rounds; None if all bits are equal."""
        for row, theirs in zip(self.rows, other.rows, strict=True):
            for key, value in row.items():
                if theirs[key] != value:
                    return f"{key} of round {row['round'] + 1} is {theirs[key]}, and was {value}"
        for name, tensor in self.weights.items():
            if not torch.equal(tensor, other.weights[name]):
                return f"{name} has other bits"
        return None


def make(name: str) -> Method:
    """Make a method with its default hyper-parameters."""
    return default_methods().make(name, {}, {})


def start_engine(method: Method, devices: Devices, **changes: Any) -> Engine:
    """Start a method on easy 8×8 images, with six clients and a tiny network."""
    return World(toy_dataset(), toy_scenario(), replace(TOY_TRAINING, **changes)).engine(method, devices)


def trained_rounds(method: Method, devices: Devices, count: int, **changes: Any) -> TrainedRounds:
    """Train a method for `count` rounds."""
    with contextlib.closing(start_engine(method, devices, **changes)) as engine:
        return TrainedRounds(run_rounds(engine, count), to_cpu(engine.server.weights))


def tried_rounds(devices: Devices) -> TrainedRounds:
    """Train the method of the comparisons for a few rounds."""
    return trained_rounds(make(TRIED_METHOD), devices, TRIED_ROUNDS)


def repeats(options: DoctorOptions) -> CheckResult:
    """Compare the same rounds twice."""
    devices = choose_devices(options.device)
    return _compare(options, tried_rounds(devices), tried_rounds(devices), "the same rounds twice")


def shares(options: DoctorOptions) -> CheckResult:
    """Compare with the same rounds in worker processes, on all GPUs of the first GPU's type."""
    gpus = _equal_gpus() if options.device == "cuda" else []
    devices = choose_devices(options.device, gpus, workers=max(2, len(gpus)))
    title = f"workers on {', '.join(str(device) for device in devices.workers)}"
    return _compare(options, tried_rounds(choose_devices(options.device)), tried_rounds(devices), title)


def _equal_gpus() -> list[str]:
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return [f"cuda:{number}" for number, name in enumerate(names) if name == names[0]]


def resumes(options: DoctorOptions) -> CheckResult:
    """Compare with the same rounds, interrupted before the last round and resumed from a checkpoint."""
    devices, method = choose_devices(options.device), make(TRIED_METHOD)
    first, second = start_engine(method, devices), start_engine(method, devices)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_rounds(first, TRIED_ROUNDS - 1)
        Checkpoint(Path(folder)).save(first, rows)
        parts, _ = Checkpoint(Path(folder)).load()
    second.restore(parts)
    resumed = TrainedRounds(rows + run_rounds(second, TRIED_ROUNDS), to_cpu(second.server.weights))
    return _compare(options, tried_rounds(devices), resumed, "stopped and resumed")


def _compare(options: DoctorOptions, rounds: TrainedRounds, other: TrainedRounds, title: str) -> CheckResult:
    difference = rounds.difference(other)
    if difference is None:
        return CheckResult("ok", f"{title}: equal to the bit")
    advice = ON_CUDA + UNEQUAL if options.device == "cuda" else UNEQUAL
    return CheckResult("wrong", f"{title}: {difference}", advice)


def try_methods(options: DoctorOptions) -> CheckResult:
    """Train with every installed method twice and compare."""
    names = list(default_methods().methods)
    problems = {name: problem for name in names if (problem := _problem(name, options.device))}
    details = {"methods": names, "problems": problems}
    if not problems:
        return CheckResult("ok", f"{len(names)} methods run, each with equal numbers twice", "", details)
    text = "\n".join(f"{name}: {problem}" for name, problem in problems.items())
    advice = f"do not use these methods on {options.device}; report it to their authors or to us"
    return CheckResult("wrong", text, advice, details)


def _problem(name: str, device: str) -> str | None:
    """Return the first difference between two short runs of a method, or its error."""
    devices = choose_devices(device)
    try:
        with warnings.catch_warnings(action="ignore"):  # some methods warn of so few rounds
            first, second = (
                trained_rounds(make(name), devices, SHORT_RUN["rounds"], **SHORT_RUN) for _ in range(2)
            )
        return first.difference(second)
    except Exception as error:
        return one_line(error)


def agrees(options: DoctorOptions) -> CheckResult:
    """Compare one round on the device with the same round on the CPU."""
    if options.device == "cpu":
        return CheckResult("ok", "the device is the CPU: there is nothing to compare")
    here, cpu = (
        trained_rounds(make("fedavg"), choose_devices(name), 1).weights for name in (options.device, "cpu")
    )
    return rounding(here, cpu)


def rounding(here: Weights, cpu: Weights) -> CheckResult:
    """Compare the difference of two sets of weights with the limit for rounding errors."""
    largest = max(tensor.abs().max().item() for tensor in cpu.values())
    gaps = torch.stack([(here[name] - tensor).abs().max() for name, tensor in cpu.items()])
    apart = gaps.max().item() / largest  # torch's maximum keeps NaN, Python's may not
    text, details = f"weights differ by {apart:.1e} of the largest one", {"apart": apart, "allowed": ROUNDING}
    if apart <= ROUNDING:  # false for NaN
        return CheckResult("ok", f"{text}: rounding", "", details)
    return CheckResult(
        "wrong", f"{text}: more than rounding", f"do not use this device yet: {REPORT}", details
    )


# -- options of torch, each in its own process -------------------------------------------------------
def probe(options: DoctorOptions, option: str, value: str) -> CheckResult:
    """Train one client with `--OPTION VALUE`, and compare with the same round without it."""
    if (option, value) in ONLY_CUDA and options.device != "cuda":
        return CheckResult("ok", "only for CUDA: not tried")
    (plain,) = trained_rounds(make("fedavg"), choose_devices(options.device), 1, **SMALL_ROUND).rows
    row, problem = train_with(options.device, {option: value})
    if row is None:
        return CheckResult("note", f"does not work: {problem}", _advice(options.device, option, value))
    return compared(row, plain)


def compared(row: Mapping[str, Any], plain: Mapping[str, Any]) -> CheckResult:
    """Compare a round with the same one without the option; a replayed step must have the same bits."""
    details = {"loss": row["loss"], "plain": plain["loss"]}
    difference = abs(row["loss"] - plain["loss"]) / plain["loss"]
    text = f"works; the test loss after one round differs by {difference:.1e} (relative)"
    replayed = row["counts"].get("replayed")
    if replayed is None:
        return CheckResult("ok", text, "", details)
    details |= {"steps": row["counts"]["steps"], "replayed": replayed}
    text = f"{text}; {replayed} of {details['steps']} steps were replayed"
    good = replayed and not difference
    return CheckResult("ok" if good else "wrong", text, "" if good else REPORT, details)


def _advice(device: str, option: str, value: str) -> str:
    """Return the option to use instead; for bfloat16 on CPUs it depends on their instructions."""
    try:
        if option == "precision":
            check_precision(device, value)
    except BadInput as error:
        return str(error)
    return f"do without --{option} {value}; it is off by default"


def train_with(device: str, changes: dict[str, str]) -> tuple[dict[str, Any] | None, str]:
    """Return one round in another process, or None and the reason."""
    # Errors are ignored: a compiler may still write when its process is killed.
    with tempfile.TemporaryDirectory(prefix="flnl-doctor-", ignore_cleanup_errors=True) as cache:
        worker, connection = start_worker(_train, device, changes, cache)
        try:
            if not connection.poll(TIME_LIMIT):
                return None, f"no answer within {TIME_LIMIT:.0f} s"
            answer: tuple[dict[str, Any] | None, str] = connection.recv()
            return answer
        except (EOFError, OSError):
            worker.join()
            code = worker.exitcode or 0
            ending = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            return None, f"its process {ending}"
        finally:
            worker.kill()
            worker.join()


def _train(connection: Connection, device: str, changes: dict[str, Any], cache: str) -> None:
    """Train in the other process, and send the round and the problem."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hide the messages of compilers
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # no earlier compilation is used, and no file stays
    try:
        (row,) = trained_rounds(make("fedavg"), choose_devices(device), 1, **SMALL_ROUND, **changes).rows
        connection.send((row, ""))
    except Exception as error:
        connection.send((None, one_line(error)))
