"""CPU time of a method's round in units of the bare cost of its passes.

Every call of a client in a round of `Engine.run_round` is watched: which passes through a network it makes,
of how many samples, in which mode, with a gradient or without; which views it renders of how many images; how
often it moves the weights. The samples that were watched must be those in the engine's ledger. Then the same
list is done by the shortest code, in the same process and directly after the call:

- a pass without a gradient: backbone and head on a ready batch of that many images, channels_last;
- a pass with a gradient: the same, the mean cross-entropy and its gradient;
- a step: the fused SGD kernel over one network; if the method trains several, as often as it has networks;
- a view: random parameters, gathered images, the engine's renderer.

The figure is the median over calls of call / replay, weighted by the replays, plus what the round needs
besides its calls, divided by all replays. The clock is the CPU time of the process. All that a method
computes besides its passes is overhead (losses, mixtures, averages of teachers), and so is all that the
engine does: states, messages, checks, averages; the test is of one image.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.measuring import Table
from flnl_bench.data import load_dataset
from flnl_bench.engine.augmentation import Views, draw_view
from flnl_bench.engine.client import ClientWorker, Reply
from flnl_bench.engine.devices import CPU, MEMORY_FORMAT, Devices
from flnl_bench.engine.engine import Engine, RoundReport
from flnl_bench.engine.sgd import SGD
from flnl_bench.methods import declarations, default_methods
from flnl_bench.models import make_network
from flnl_bench.models.networks import Network
from flnl_bench.testing.worlds import World, make_world, random_images, worker_of

ROUNDS = 20  # of a run; the warm-ups take up to a fifth
METHODS = sorted(declarations())
CHANGES = {"feddiv": {"least_samples": "10"}}  # as in the preset `quick`
Event = tuple[str, Any, int]  # what, which, of how many samples


def passes_world(model: str) -> World:
    """Return small clients as in `quick` for tiny-cnn, and four clients of 64 random images for ResNets."""
    if model.startswith("tiny-cnn"):
        return make_world(load_dataset("digits"), model, 35, epochs=10, rounds=ROUNDS, fraction=0.286)
    return make_world(random_images(256, 3, 32), model, clients=4, epochs=10, rounds=ROUNDS)


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
class Round:
    """CPU seconds of the calls of a round, each with its replay, and of the rest of the round."""

    calls: list[tuple[float, float]]
    rest: float
    passes: float  # per sample that trained

    @property
    def replays(self) -> float:
        """Return the seconds of all replays."""
        return sum(replay for _, replay in self.calls)


def timed_round(engine: Engine, bare: Bare) -> tuple[Round, RoundReport]:
    """Run a round, and the replay of each call directly after the call."""
    calls: list[tuple[float, float]] = []
    inside = 0.0
    watch = Watch()

    def followed(answer: Callable[..., Reply]) -> Callable[..., Reply]:
        def call(*arguments: Any) -> Reply:
            nonlocal inside
            first, begin = len(watch.events), time.process_time()
            reply = answer(*arguments)
            spent = time.process_time() - begin
            events = watch.events[first:]
            bare.prepare(events)
            start = time.process_time()
            bare.replay(events)
            end = time.process_time()
            calls.append((spent, end - start))
            inside += end - begin
            return reply

        return call

    with watch.watching(), ExitStack() as stack:
        for name in ("train_client", "visit_client"):
            stack.enter_context(patch.object(ClientWorker, name, followed(getattr(ClientWorker, name))))
        begin = time.process_time()
        report = engine.run_round()
        rest = time.process_time() - begin - inside
    assert watch.samples("gradient") == report.backward
    assert watch.samples("gradient", "pass") == report.forward
    trained = sum(engine.server.sizes[k] for k in report.clients)
    return Round(calls, rest, (report.forward + 2 * report.backward) / trained), report


def measured(method: str, world: World, repeats: int) -> dict[str, list[Round]]:
    """Measure rounds past the warm-up, or of each stage that a method tells."""
    engine = world.engine(default_methods().make(method, {}, CHANGES.get(method, {})), Devices(CPU))
    bare = Bare(world, worker_of(engine).images.views)
    warm = engine.method.warmup(engine.terms)
    found: dict[str, list[Round]] = defaultdict(list)
    for number in range(ROUNDS):
        row, report = timed_round(engine, bare)
        stage = report.method.get("stage")
        name = method if stage is None else f"{method}, stage {stage:.0f}"
        if len(found[name]) < repeats and (stage is not None or number >= warm):
            found[name].append(row)
        elif stage is None and number >= warm:
            break
    return {name: rounds for name, rounds in found.items() if rounds}


def weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of first / second, weighted by the second."""
    ordered = sorted(pairs, key=lambda pair: pair[0] / pair[1])
    half, below = sum(weight for _, weight in pairs) / 2, 0.0
    for value, weight in ordered:
        below += weight
        if below >= half:
            return value / weight
    raise ValueError("no pairs")


def passes(models: Sequence[str], methods: Sequence[str], repeats: int) -> Iterator[Table]:
    """Yield a table for each network, with a row per method."""
    for model in models:
        table = Table(f"Passes: CPU time of a round in units of its passes, views and steps, {model}")
        world = passes_world(model)
        for method in methods:
            for name, rounds in measured(method, world, repeats).items():
                calls = weighted_median([call for row in rounds for call in row.calls])
                rest = statistics.median(row.rest / row.replays for row in rounds)
                passes = statistics.median(row.passes for row in rounds)
                table.add(
                    method=name, ratio=calls + rest, clients=calls, server=rest, passes_per_sample=passes
                )
        yield table
