"""Where the time of a FedGR round on resnet8 goes, by torch.profiler.

The marks are put around the parts from here: the engine carries none. A part owns what runs inside it
and inside no part within, so every moment counts once.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from flnl_methods import fedgr
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.speed.measuring import Table
from flnl_bench.api import Method
from flnl_bench.config import RunConfig
from flnl_bench.engine import client as local
from flnl_bench.engine.augmentation import Views
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import choose_devices
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.sgd import SGD
from flnl_bench.methods import values_of
from flnl_bench.models.networks import Network
from flnl_bench.running import runner
from flnl_bench.running.options import RunOptions
from flnl_bench.testing.worlds import SEED, make_world, random_images

MARK = "part: "
REST = "everything else"
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "forward": ((Network, "forward"), (Network, "both")),
    "backward": ((torch.Tensor, "backward"),),
    "augmentation": ((Views, "render"), (local, "draw_view")),
    "optimiser": ((SGD, "step"), (SGD, "zero_grad")),
    "loss": ((fedgr.FedGR, "loss"),),
    "moving average of the teacher": ((fedgr, "mix_into"),),
    "mixture": ((fedgr, "loss_mixture"),),
    "weights averaged and copied": (
        (Method, "aggregate"),
        (local, "copy_weights"),
        (fedgr, "copy_weights"),
    ),
    "test": ((Engine, "test"),),
    "diagnostics": ((Engine, "predict_train"), (runner.Runner, "_beliefs"), (runner, "judge")),
    "checkpoint": ((Checkpoint, "save"),),
}


def profile_round() -> Table:
    """The round after the warm-up."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports missing GPUs as errors
    profiler, whole = profile(activities=[ProfilerActivity.CPU]), record_function(MARK + REST)

    def look(row: Any) -> None:
        if row["round"] == 0:
            profiler.start()
            whole.__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        else:
            whole.__exit__(None, None, None)
            profiler.stop()

    with tempfile.TemporaryDirectory() as folder, ExitStack() as marks:
        for part, places in PARTS.items():
            for owner, name in places:
                marks.enter_context(patch.object(owner, name, marked(part, getattr(owner, name))))
        fedgr_run(Path(folder)).run(progress=look)
    events = profiler.events()  # type: ignore[no-untyped-call, unused-ignore]
    return as_table(self_times(events or ()))


def fedgr_run(folder: Path) -> runner.Runner:
    """Two rounds of four clients of 500 images, two epochs, 2,000 test images."""
    world = make_world(
        random_images(2000, 3, 32, test=2000), "resnet8", clients=4, epochs=2, rounds=2, test_samples=None
    )
    method = fedgr.FedGR(warmup_share=0.0)  # every client once: one round
    config = RunConfig(
        method="fedgr",
        dataset=world.dataset.name,
        partition=world.scenario.partition,
        setting=world.scenario.setting,
        preset="quick",
        seed=SEED,
        device="cpu",
        training=world.training,
        hyperparameters=values_of(method),
    )
    return runner.Runner(
        RunOptions("fedgr", out=folder),
        config,
        method,
        world.dataset,
        world.scenario,
        choose_devices("cpu"),
        changed={},
    )


def marked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a mark around it; a test is not taken apart."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        looks = part == "forward" and not torch.is_grad_enabled()
        with record_function(MARK + (f"{part} without gradient" if looks else part)):
            return function(*args, **kwargs)

    return call


def self_times(events: Iterable[FunctionEvent]) -> Counter[str]:
    """Time of each part: of its own mark and of all operations below it, up to the next mark."""
    times: Counter[str] = Counter()
    for event in events:
        owner: FunctionEvent | None = event
        while owner is not None and not owner.name.startswith(MARK):
            owner = owner.cpu_parent
        if owner is not None:
            times[owner.name.removeprefix(MARK)] += event.self_cpu_time_total
    return times


def as_table(times: Counter[str]) -> Table:
    """Shares of the round, the largest first."""
    table = Table("A round of FedGR on resnet8: share of its time in percent")
    for part, time in times.most_common():
        table.add(part=part, percent=100 * time / times.total())
    return table
