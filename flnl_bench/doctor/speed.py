"""The training speed of this machine, and which options of a run are fastest on it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from flnl_bench.config import Training
from flnl_bench.data import find_dataset
from flnl_bench.doctor.check_result import CheckResult, DoctorOptions
from flnl_bench.doctor.machine import cores
from flnl_bench.doctor.reproducibility import make
from flnl_bench.engine.devices import choose_devices
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import one_line
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import protocol
from flnl_bench.testing.worlds import World, make_world, random_images, rate_world

TIMED_MODELS = ("tiny-cnn", "resnet8", "resnet18")
GPU_EPOCHS = 10  # fewer epochs would be too short to measure on a GPU
MOST_WORKERS = 16
BATCHES, EPOCHS = 2, 5  # of a client in a round that is timed for `tune`


def round_seconds(engine: Engine, repeats: int = 2) -> float:
    """Return the shortest time of several rounds, after one warm-up round; waits for the device."""
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(engine.device.type)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        engine.run_round()
        if wait:
            wait()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def rate(options: DoctorOptions, model: str) -> CheckResult:
    """Measure the images per second of one client that trains as FedAvg."""
    world = rate_world(model, clients=1, epochs=None if options.device == "cpu" else GPU_EPOCHS)
    engine = world.engine(make("fedavg"), choose_devices(options.device))
    speed = world.images / round_seconds(engine)
    return CheckResult("ok", f"{speed:,.0f} images/s", "", {"images_per_second": speed})


# -- the fastest options for a preset ----------------------------------------------------------------
@dataclass(frozen=True)
class Timing:
    """The speed of a round with some options of `run`, against a round without them."""

    options: str  # "" for none
    same_numbers: bool  # as without them, to the bit
    speed: float | None  # None: it failed
    problem: str = ""


def tune(device: str, preset: str, dataset: str) -> Iterator[Timing]:
    """Measure rounds of FedAvg on random images of a data set's size, with all options that may be faster."""
    world = short_rounds(protocol(load_preset(preset), dataset, {}), dataset)
    alone = _seconds(world, device, {})
    yield Timing("", True, 1.0)
    for values in candidates(world.training.clients, cores(), device):
        options = " ".join(f"--{name} {value}" for name, value in values.items())
        same = values.keys() <= {"workers"}
        try:
            yield Timing(options, same, alone / _seconds(world, device, values))
        except Exception as error:  # a compiler or a driver that does not work is no reason to stop
            yield Timing(options, same, None, one_line(error))


def short_rounds(training: Training, dataset: str) -> World:
    """Make a world of one round's clients, each with a few batches."""
    kind, sampled = find_dataset(dataset), training.sampled_clients
    images = training.samples or kind.train_images or sys.maxsize
    each = max(1, min(images // training.clients, BATCHES * training.batch_size))
    channels, side, _ = kind.image_shape or (3, 32, 32)
    kept = ("batch_size", "norm", "precision")
    return make_world(
        random_images(sampled * each, channels, side),
        training.model,
        clients=sampled,
        epochs=min(training.epochs, EPOCHS),
        **{name: getattr(training, name) for name in kept},
    )


def candidates(clients: int, cores: int, device: str) -> Iterator[Mapping[str, Any]]:
    """Yield options that may train the clients of a round faster than one after the other."""
    workers = 1
    while workers <= min(cores, clients, MOST_WORKERS):
        together = -(-clients // workers)
        if workers > 1:
            yield {"workers": workers}
        for stack in sorted({together, -(-together // 2)} - {1}):
            yield {"stack": stack, **({"workers": workers} if workers > 1 else {})}
        workers *= 2
    if device == "cuda":
        yield {"compile": "default"}
        yield {"compile": "cudagraphs"}


def _seconds(world: World, device: str, values: Mapping[str, Any]) -> float:
    training = {name: value for name, value in values.items() if name != "workers"}
    changed = replace(world, training=replace(world.training, **training))
    devices = choose_devices(device, workers=values.get("workers"))
    with contextlib.closing(changed.engine(make("fedavg"), devices)) as engine:
        return round_seconds(engine)
