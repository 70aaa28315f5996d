"""Reproducibility on this machine, and agreement with the CPU, on the small data of the tests."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flnl_bench.api import Method, Weights
from flnl_bench.doctor.check_result import REPORT, CheckResult, DoctorOptions
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import Devices, choose_devices, to_cpu
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import one_line
from flnl_bench.methods import default_methods
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset, toy_scenario
from flnl_bench.testing.worlds import World

TRIED_METHOD = "fedgr"  # it uses most parts of the engine: states, views, a teacher, a mixture
TRIED_ROUNDS = 4  # of which two are warm-up
ROUNDING = 1e-3  # relative to the largest weight, after one round in float32
SHORT_RUN = {"rounds": 3, "epochs": 1}  # short, because all methods are tried
UNEQUAL = f"runs cannot be repeated here: {REPORT}"
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


def toy_world(**changes: Any) -> World:
    """Make a world of easy 8×8 images, six clients and a tiny network."""
    return World(toy_dataset(), toy_scenario(), replace(TOY_TRAINING, **changes))


def make(name: str) -> Method:
    """Make a method with its default hyper-parameters."""
    return default_methods().make(name, {}, {})


def trained_rounds(method: Method, devices: Devices, played: int, **changes: Any) -> TrainedRounds:
    """Train for `played` rounds in the toy world."""
    with contextlib.closing(toy_world(**changes).engine(method, devices)) as engine:
        return _seen(run_rounds(engine, played), engine)


def _seen(rows: list[dict[str, Any]], engine: Engine) -> TrainedRounds:
    return TrainedRounds(rows, to_cpu(engine.server.weights))


def repeats(options: DoctorOptions) -> CheckResult:
    """Compare the same rounds twice."""
    one, other = (
        trained_rounds(make(TRIED_METHOD), choose_devices(options.device), TRIED_ROUNDS) for _ in range(2)
    )
    return _equal(options, one, other, "the same rounds twice")


def shares(options: DoctorOptions) -> CheckResult:
    """Compare with the same rounds in worker processes, on all GPUs of the first GPU's type."""
    one = trained_rounds(make(TRIED_METHOD), choose_devices(options.device), TRIED_ROUNDS)
    alike = _alike(options.device)
    devices = choose_devices(options.device, alike, workers=max(2, len(alike)))
    names = ", ".join(str(device) for device in devices.workers)
    return _equal(
        options, one, trained_rounds(make(TRIED_METHOD), devices, TRIED_ROUNDS), f"workers on {names}"
    )


def _alike(device: str) -> list[str]:
    if device != "cuda":
        return []
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return [f"cuda:{number}" for number, name in enumerate(names) if name == names[0]]


def resumes(options: DoctorOptions) -> CheckResult:
    """Compare with the same rounds, interrupted before the last round and resumed from a checkpoint."""
    devices = choose_devices(options.device)
    one, method = trained_rounds(make(TRIED_METHOD), devices, TRIED_ROUNDS), make(TRIED_METHOD)
    first, second = (toy_world().engine(method, devices) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        rows = run_rounds(first, TRIED_ROUNDS - 1)
        Checkpoint(Path(folder)).save(first.state(), first.federation.states, set(), rows)
        state, clients, _ = Checkpoint(Path(folder)).load()
    second.restore(state, clients)
    return _equal(options, one, _seen(rows + run_rounds(second, TRIED_ROUNDS), second), "stopped and resumed")


def _equal(options: DoctorOptions, one: TrainedRounds, other: TrainedRounds, what: str) -> CheckResult:
    difference = one.difference(other)
    if difference is None:
        return CheckResult("ok", f"{what}: equal to the bit")
    advice = ON_CUDA + UNEQUAL if options.device == "cuda" else UNEQUAL
    return CheckResult("wrong", f"{what}: {difference}", advice)


def methods(options: DoctorOptions) -> CheckResult:
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
    try:
        with warnings.catch_warnings(action="ignore"):  # some methods warn of so few rounds
            one, other = (
                trained_rounds(make(name), choose_devices(device), SHORT_RUN["rounds"], **SHORT_RUN)
                for _ in range(2)
            )
        return one.difference(other)
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
