"""Whether this machine computes the same twice, and the same as another: on the toy world of the tests."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flnl_bench.api import Method, Weights
from flnl_bench.doctor.check_result import REPORT, Asked, Finding
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import Devices, choose_devices, to_cpu
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import one_line
from flnl_bench.methods import default_methods
from flnl_bench.testing import TRAINING, play, toy_dataset, toy_scenario
from flnl_bench.testing.worlds import World

METHOD = "fedgr"  # it has everything that could differ: states, views, a teacher, a mixture
ROUNDS = 4  # the warm-up of the toy world takes two of them
ROUNDING = 1e-3  # of the largest weight, after one round of float32
SHORT = {"rounds": 3, "epochs": 1}  # for all methods, which are many
UNEQUAL = f"runs cannot be repeated here: {REPORT}"
ON_CUDA = "set CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment and try again; if it stays so, "


@dataclass(frozen=True)
class Outcome:
    """What a few rounds gave."""

    rows: list[dict[str, Any]]
    weights: Weights  # on the CPU

    def difference(self, other: Outcome) -> str | None:
        """Where another one differs in any bit."""
        for row, theirs in zip(self.rows, other.rows, strict=True):
            for key, value in row.items():
                if theirs[key] != value:
                    return f"{key} of round {row['round'] + 1} is {theirs[key]}, and was {value}"
        odd = [name for name, tensor in self.weights.items() if not torch.equal(tensor, other.weights[name])]
        return f"{odd[0]} has other bits" if odd else None


def toy_world(**changes: Any) -> World:
    """Easy 8×8 images, six clients, a tiny network."""
    return World(toy_dataset(), toy_scenario(), replace(TRAINING, **changes))


def make(name: str) -> Method:
    """A method as it is without a preset."""
    return default_methods().make(name, {}, {})


def outcome(method: Method, devices: Devices, played: int, **changes: Any) -> Outcome:
    """So many rounds in the toy world."""
    with contextlib.closing(toy_world(**changes).engine(method, devices)) as engine:
        return _seen(play(engine, played), engine)


def _seen(rows: list[dict[str, Any]], engine: Engine) -> Outcome:
    return Outcome(rows, to_cpu(engine.server.weights))


def repeats(asked: Asked) -> Finding:
    """The same rounds twice."""
    one, other = (outcome(make(METHOD), choose_devices(asked.device), ROUNDS) for _ in range(2))
    return _equal(asked, one, other, "the same rounds twice")


def shares(asked: Asked) -> Finding:
    """The same rounds by worker processes, on all GPUs that are like the first."""
    one = outcome(make(METHOD), choose_devices(asked.device), ROUNDS)
    alike = _alike(asked.device)
    devices = choose_devices(asked.device, alike, workers=max(2, len(alike)))
    names = ", ".join(str(device) for device in devices.workers)
    return _equal(asked, one, outcome(make(METHOD), devices, ROUNDS), f"workers on {names}")


def _alike(device: str) -> list[str]:
    if device != "cuda":
        return []
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return [f"cuda:{number}" for number, name in enumerate(names) if name == names[0]]


def resumes(asked: Asked) -> Finding:
    """The same rounds, stopped before the last one and gone on with from the files."""
    devices = choose_devices(asked.device)
    one, method = outcome(make(METHOD), devices, ROUNDS), make(METHOD)
    first, second = (toy_world().engine(method, devices) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        rows = play(first, ROUNDS - 1)
        Checkpoint(Path(folder)).save(first.state(), first.federation.states, set(), rows)
        state, clients, _ = Checkpoint(Path(folder)).load()
    second.restore(state, clients)
    return _equal(asked, one, _seen(rows + play(second, ROUNDS), second), "stopped and resumed")


def _equal(asked: Asked, one: Outcome, other: Outcome, what: str) -> Finding:
    difference = one.difference(other)
    if difference is None:
        return Finding("ok", f"{what}: equal to the bit")
    advice = ON_CUDA + UNEQUAL if asked.device == "cuda" else UNEQUAL
    return Finding("wrong", f"{what}: {difference}", advice)


def methods(asked: Asked) -> Finding:
    """Every installed method on this device, twice."""
    odd = {name: told for name in default_methods().methods if (told := _trouble(name, asked.device))}
    details = {"methods": list(default_methods().methods), "odd": odd}
    if not odd:
        return Finding("ok", f"{len(details['methods'])} methods play, each twice the same", "", details)
    told = "\n".join(f"{name}: {trouble}" for name, trouble in odd.items())
    return Finding("wrong", told, f"do not use them on {asked.device}; tell their authors, or us", details)


def _trouble(name: str, device: str) -> str | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # that three rounds are few for some methods
            one, other = (
                outcome(make(name), choose_devices(device), SHORT["rounds"], **SHORT) for _ in range(2)
            )
        return one.difference(other)
    except Exception as error:
        return one_line(error)


def agrees(asked: Asked) -> Finding:
    """A round on the device against the same round on the CPU."""
    if asked.device == "cpu":
        return Finding("ok", "the device is the CPU: there is nothing to compare")
    here, cpu = (outcome(make("fedavg"), choose_devices(name), 1).weights for name in (asked.device, "cpu"))
    return rounding(here, cpu)


def rounding(here: Weights, cpu: Weights) -> Finding:
    """How far two sets of weights are apart, against what rounding explains."""
    largest = max(tensor.abs().max().item() for tensor in cpu.values())
    gaps = torch.stack([(here[name] - tensor).abs().max() for name, tensor in cpu.items()])
    apart = gaps.max().item() / largest  # torch's maximum: Python's would lose a NaN
    text, details = f"weights differ by {apart:.1e} of the largest one", {"apart": apart, "allowed": ROUNDING}
    if apart <= ROUNDING:  # not so for NaN
        return Finding("ok", f"{text}: rounding", "", details)
    return Finding("wrong", f"{text}: more than rounding", f"do not use this device yet: {REPORT}", details)
