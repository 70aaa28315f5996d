"""How fast this machine trains, how close the engine is to a bare loop, and how many workers help."""

from __future__ import annotations

import contextlib
import time

from flnl_bench.data import load_dataset
from flnl_bench.doctor.finding import REPORT, Asked, Finding
from flnl_bench.doctor.limit import Limit
from flnl_bench.doctor.machine import cores
from flnl_bench.doctor.numbers import make
from flnl_bench.doctor.timing import best_seconds, clock_of
from flnl_bench.doctor.worlds import World, make_world, rate_world
from flnl_bench.engine.devices import choose_devices

MODELS = ("tiny-cnn", "resnet8", "resnet18")
REPEATS = 2
GPU_EPOCHS = 10  # a GPU would be done with fewer before its rate can be told
SLOW = 0.7  # of the bare loop; below, something is wrong with the engine or with the measurement
MOST_WORKERS = 16


def rate(asked: Asked, model: str) -> Finding:
    """Images per second of the engine and of the bare loop, in turn, set up alike."""
    world = rate_world(model, clients=1, epochs=None if asked.device == "cpu" else GPU_EPOCHS)
    devices = choose_devices(asked.device)
    engine = world.engine(make("fedavg"), devices)
    bare = Limit(world, devices.server)
    ours, limit = best_seconds([engine.play_round, bare.play], REPEATS, clock_of(devices.server))
    details = {"engine": world.images / ours, "bare": world.images / limit, "ratio": limit / ours}
    text = f"{world.images / ours:,.0f} images/s, {limit / ours:.2f} of the bare loop's rate"
    if limit / ours < SLOW:
        return Finding("note", text, f"repeat on an idle machine; if it stays so: {REPORT}", details)
    return Finding("ok", text, "", details)


def small_world() -> World:
    """A round that is long enough to be shared."""
    return make_world(load_dataset("digits"), "tiny-cnn", clients=MOST_WORKERS, epochs=2)


def workers(asked: Asked) -> Finding:
    """Twice as many workers, as long as that helps and there are cores for them."""
    world, count = small_world(), 1
    seconds: dict[int, float] = {}
    while count <= min(cores(), MOST_WORKERS):
        devices = choose_devices(asked.device, workers=count)
        with contextlib.closing(world.engine(make("fedavg"), devices)) as engine:
            (seconds[count],) = best_seconds([engine.play_round], REPEATS, time.perf_counter)
        if seconds[count] > min(seconds.values()):
            break
        count *= 2
    best = min(seconds, key=seconds.__getitem__)
    speeds = {number: seconds[1] / spent for number, spent in seconds.items()}
    told = ", ".join(f"{number}: ×{speed:.2f}" for number, speed in speeds.items())
    advice = f"--workers {best} for one run; suites: one run a core instead" if best > 1 else ""
    details = {"best": best, "speeds": speeds}
    return Finding("ok", f"best for a small federation: {best} ({told})", advice, details)
