"""The training speed of this machine, and the best number of workers."""

from __future__ import annotations

import contextlib
import time

import torch

from flnl_bench.data import load_dataset
from flnl_bench.doctor.check_result import CheckResult, DoctorOptions
from flnl_bench.doctor.machine import cores
from flnl_bench.doctor.reproducibility import make
from flnl_bench.engine.devices import choose_devices
from flnl_bench.engine.engine import Engine
from flnl_bench.testing.worlds import World, make_world, rate_world

TIMED_MODELS = ("tiny-cnn", "resnet8", "resnet18")
GPU_EPOCHS = 10  # fewer epochs would be too short to measure on a GPU
MOST_WORKERS = 16


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


def small_world() -> World:
    """Make a world whose rounds are long enough to measure with several workers."""
    return make_world(load_dataset("digits"), "tiny-cnn", clients=MOST_WORKERS, epochs=2)


def workers(options: DoctorOptions) -> CheckResult:
    """Double the number of workers while rounds get faster and there are enough cores."""
    world, count = small_world(), 1
    seconds: dict[int, float] = {}
    while count <= min(cores(), MOST_WORKERS):
        devices = choose_devices(options.device, workers=count)
        with contextlib.closing(world.engine(make("fedavg"), devices)) as engine:
            seconds[count] = round_seconds(engine)
        if seconds[count] > min(seconds.values()):
            break
        count *= 2
    best = min(seconds, key=seconds.__getitem__)
    speeds = {number: seconds[1] / spent for number, spent in seconds.items()}
    ratios = ", ".join(f"{number}: ×{speed:.2f}" for number, speed in speeds.items())
    advice = f"--workers {best} for one run; for suites, one run per core instead" if best > 1 else ""
    details = {"best": best, "speeds": speeds}
    return CheckResult("ok", f"best for a small federation: {best} ({ratios})", advice, details)
