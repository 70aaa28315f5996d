"""CPU time of a method's round in units of the bare cost of its passes.

A round of `Engine.run_round` is watched: which passes through a network it makes, of how many samples, in
which mode, with a gradient or without; which views it renders of how many images; how often it moves the
weights. The samples that were watched must be those in the engine's ledger. Then the same list is done by the
shortest code, in the same process and directly after the round:

- a pass without a gradient: backbone and head on a ready batch of that many images, channels_last;
- a pass with a gradient: the same, the mean cross-entropy and its gradient;
- a step: the fused SGD kernel over one network; if the method trains several, as often as it has networks;
- a view: random parameters, gathered images, the engine's renderer.

The figure is the shortest round / the shortest replay, by the CPU time of the process. Rounds differ in their
samples, so both are per unit of work: a pass without a gradient is one unit, one with a gradient three. All
that a method computes besides its passes is overhead (losses, mixtures, averages of teachers), and so is all
that the engine does: calls of clients, states, messages, checks, averages; the test is of one image.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.measuring import Table
from flnl_bench.data import load_dataset
from flnl_bench.engine.augmentation import Views, draw_view
from flnl_bench.engine.devices import CPU, MEMORY_FORMAT, Devices
from flnl_bench.engine.sgd import SGD
from flnl_bench.methods import declarations, default_methods
from flnl_bench.models import make_network
from flnl_bench.models.networks import Network
from flnl_bench.testing.worlds import World, make_world, random_images, worker_of

ROUNDS = 20  # of a run; the warm-ups take up to a fifth
METHODS = [name for name, declared in declarations().items() if declared.place < math.inf]
CHANGES = {"feddiv": {"least_samples": "10"}}  # as in the preset `quick`
Event = tuple[str, Any, int]  # what, which, of how many samples


def passes_world(model: str) -> World:
    """Return the small clients of the preset `quick` for tiny-cnn, and 160 random images each for ResNets."""
    if model.startswith("tiny-cnn"):
        return make_world(load_dataset("digits"), model, 35, epochs=10, rounds=ROUNDS, fraction=0.286)
    return make_world(random_images(640, 3, 32), model, clients=4, epochs=2, rounds=ROUNDS)


@dataclass
class Watch:
    """The passes, views and steps of a round."""

    events: list[Event] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what networks, views and optimisers do."""
        count, render, step = Network._count, Views.render, SGD.step
        events = self.events

        def watched_count(network: Network, features: Tensor) -> None:
            kind = "gradient" if features.requires_grad else "pass"
            kind = "test" if torch.is_inference_mode_enabled() else kind
            events.append((kind, network.training, len(features)))
            count(network, features)

        def watched_render(views: Views, images: Tensor, draw: Any) -> Tensor:
            events.append(("view", draw.view, len(draw)))
            return render(views, images, draw)

        def watched_step(optimiser: SGD, *args: Any) -> None:
            events.append(("step", None, len(optimiser.parameters)))
            step(optimiser, *args)

        with (
            patch.object(Network, "_count", watched_count),
            patch.object(Views, "render", watched_render),
            patch.object(SGD, "step", watched_step),
        ):
            yield

    @property
    def work(self) -> int:
        """Return the passes, those with a gradient counted three times."""
        return sum({"gradient": 3, "pass": 1}.get(kind, 0) for kind, _, _ in self.events)

    def samples(self, *kinds: str) -> int:
        """Return the samples of passes of some kinds."""
        return sum(size for kind, _, size in self.events if kind in kinds)


class Bare:
    """The shortest code for passes, views and steps of one world."""

    def __init__(self, world: World, views: Views) -> None:
        self.images = torch.from_numpy(world.dataset.train_x)
        self.labels = torch.from_numpy(world.dataset.train_y)
        self.views, self.world = views, world
        # Two networks, so that nothing is switched between the modes.
        self.networks = {mode: self._network().train(mode) for mode in (True, False)}
        training = world.training
        self.parameters = len(list(self.networks[True].parameters()))
        self.optimiser = SGD(
            self.networks[True].named_parameters(), training.lr, training.momentum, training.weight_decay
        )
        self.rng = np.random.default_rng(0)
        self.batches: dict[int, Tensor] = {}

    def _network(self) -> nn.Module:
        world = self.world
        kind, classes = world.training.model, len(world.dataset.classes)
        network = make_network(kind, channels=world.channels, classes=classes)
        return nn.Sequential(network.backbone, network.head).to(memory_format=MEMORY_FORMAT)

    def batch(self, size: int) -> Tensor:
        """Return a ready batch."""
        if size not in self.batches:
            self.batches[size] = self.view("plain", size)
        return self.batches[size]

    def view(self, name: str, count: int) -> Tensor:
        """Draw, gather and render a view."""
        draw = draw_view(name, count, self.world.dataset.augmentation, self.rng)
        images = self.images.index_select(0, torch.from_numpy(np.arange(count) % len(self.images)))
        return self.views.render(images, draw).contiguous(memory_format=MEMORY_FORMAT)

    def prepare(self, events: Sequence[Event]) -> None:
        """Make the batches that a replay needs."""
        for kind, _, size in events:
            if kind in ("pass", "gradient", "test"):
                self.batch(size)

    def replay(self, events: Sequence[Event]) -> None:
        """Do what was watched."""
        for kind, which, size in events:
            if kind in ("pass", "test"):
                with torch.no_grad():
                    self.networks[which](self.batches[size])
            elif kind == "gradient":
                logits = self.networks[which](self.batches[size])
                torch.autograd.backward(F.cross_entropy(logits, self.labels[:size]))
            elif kind == "step":
                for _ in range(size // self.parameters):
                    self.optimiser.step()
                self.optimiser.zero_grad()
            else:
                self.view(which, size)


@dataclass
class Measured:
    """CPU seconds of a round and of its replay, per unit of work."""

    round: float
    replay: float
    passes: float  # of a round, per sample that trained


def measured(method: str, world: World, repeats: int) -> dict[str, list[Measured]]:
    """Measure rounds past the warm-up, or of each stage that a method tells."""
    engine = world.engine(default_methods().make(method, {}, CHANGES.get(method, {})), Devices(CPU))
    bare = Bare(world, worker_of(engine).images.views)
    warm = engine.method.warmup(engine.terms)
    found: dict[str, list[Measured]] = defaultdict(list)
    for number in range(ROUNDS):
        watch = Watch()
        with watch.watching():
            spent, report = timed(engine.run_round)
        assert watch.samples("gradient") == report.backward
        assert watch.samples("gradient", "pass") == report.forward
        stage = report.method.get("stage")
        name = method if stage is None else f"{method}, stage {stage:.0f}"
        if len(found[name]) < repeats and (stage is not None or number >= warm):
            bare.prepare(watch.events)
            replayed, _ = timed(partial(bare.replay, watch.events))
            samples = sum(engine.server.sizes[k] for k in report.clients)
            passes = (report.forward + 2 * report.backward) / samples
            found[name].append(Measured(spent / watch.work, replayed / watch.work, passes))
        elif stage is None and number >= warm:
            break
    return {name: rows for name, rows in found.items() if rows}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def passes(models: Sequence[str], methods: Sequence[str], repeats: int) -> Iterator[Table]:
    """Yield a table for each network, with a row per method."""
    for model in models:
        table = Table(f"Passes: CPU time of a round in units of its passes, views and steps, {model}")
        world = passes_world(model)
        for method in methods:
            for name, rows in measured(method, world, repeats).items():
                singles = sorted(row.round / row.replay for row in rows)
                table.add(
                    method=name,
                    ratio=min(row.round for row in rows) / min(row.replay for row in rows),
                    single_rounds=f"{singles[0]:.2f} to {singles[-1]:.2f}",
                    passes_per_sample=statistics.median(row.passes for row in rows),
                )
        yield table
