"""What happens on one client: the engine's reference path, client after client.

Inside a local epoch nothing waits for the device: all random draws are made on the CPU before a
portion of steps starts and are copied once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flnl_bench.api import (
    Batch,
    Client,
    Method,
    State,
    Step,
    Terms,
    Update,
    Weights,
    copy_weights,
    network_weights,
)
from flnl_bench.cost import Cost
from flnl_bench.engine.contract import as_losses, as_message, as_part, as_portions, as_state, check_plain
from flnl_bench.engine.sgd import Optimiser
from flnl_bench.engine.shards import Shards, take
from flnl_bench.engine.transfer import to_device
from flnl_bench.engine.tree import placed, to_cpu
from flnl_bench.engine.views import Views, draw_view
from flnl_bench.models.network import Network
from flnl_bench.streams import stream

SLAB_PIXELS = 1 << 23  # images are augmented ahead in slabs of whole batches of about this size
MEMORY_FORMAT = torch.channels_last
EVALUATION_BATCH = 200  # 512 is twice as slow on CPUs: the allocator returns such blocks to the system


@dataclass(frozen=True)
class Task:
    """One client's work in a round: with the global weights, all that any worker needs to do it."""

    client: int
    round: int
    call: tuple[str | int, ...]  # tells calls in one round apart; empty for the first training
    inbox: Mapping[str, Any]
    state: State | None  # None: never seen before
    epochs: int | None = None
    errand: Callable[[Client], Mapping[str, Any]] | None = None  # what a visit does; None: train


@dataclass(frozen=True)
class Result:
    """What a task gives back: the answer, the client's new state, and what it cost."""

    answer: Any  # Update after training, a mapping after a visit
    state: State
    cost: Cost
    loss: float | None = None


@dataclass
class Workbench:
    """The models and data of one worker; it does one client's task at a time."""

    method: Method
    terms: Terms
    shards: Shards
    test_images: Tensor
    views: Views
    optimiser: Optimiser
    model: nn.Module  # trained in place for each client in turn
    seed: int
    autocasts: bool = False  # networks compute in bfloat16
    compile_mode: str | None = None  # of torch.compile for the networks that train; None: do not compile
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        self._frozen: list[nn.Module] = []
        self._used = 0
        self._meter(self.model)
        if self.compile_mode:
            for network in _networks(self.model):
                network.backbone.compile(mode=self.compile_mode)
        self._live = network_weights(self.model)
        self._sent = sent_weights(self.method, self.model)

    def work(self, weights: Weights, tasks: Iterable[Task]) -> Iterator[Result]:
        """Do one task after the other."""
        return (self.do(weights, task) for task in tasks)

    def do(self, weights: Weights, task: Task) -> Result:
        """Train one client, or run an errand on it."""
        client, who = self._client(weights, task), self.method.name
        if task.errand is None:
            answer, loss = self._train(weights, task, client)
        else:
            answer, loss = to_cpu(as_message(who, "a task of visit", task.errand(client))), None
        check_plain(client.state, f"{who}: client.state")
        return Result(answer, to_cpu(client.state), self.cost, loss)

    def global_model(self, weights: Weights) -> nn.Module:
        """A frozen model for evaluation between tasks."""
        self._used = 0
        return self._bind(weights)

    def logits(self, weights: Weights, part: str, rows: np.ndarray, member: str | None = None) -> Tensor:
        """What the global model, or one network of it, says to images of a part of the data."""
        model = self.global_model(weights)
        predict = model.get_submodule(member) if member else partial(self.method.predict, model)
        images = self.test_images if part == "test" else self.shards.images
        outputs = []
        with torch.inference_mode():
            for batch in np.split(rows, range(EVALUATION_BATCH, len(rows), EVALUATION_BATCH)):
                plain = draw_view("plain", len(batch), self.views.augmentation, np.random.default_rng(0))
                x = self.views.render(take(images, batch, self.shards.device), plain)
                outputs.append(predict(x.contiguous(memory_format=MEMORY_FORMAT)))
        return torch.cat(outputs)

    # -- pieces ------------------------------------------------------------------------------------
    def _train(self, weights: Weights, task: Task, client: Client) -> tuple[Update, float | None]:
        """Local training: what the client sends, and its mean loss."""
        model, method, who = self.model, self.method, self.method.name
        self._load(weights, client.state)
        method.on_receive(model, client)
        optimiser = self.optimiser.start(model.named_parameters())
        total = torch.zeros((), device=self.shards.device)
        count = 0
        model.train()
        rngs = [self._stream(task, "view", i) for i in range(len(method.views()))]
        for portion in as_portions(who, method.plan(model, client)):
            for batch in self._batches(task.client, portion, method.views(), rngs):
                optimiser.zero_grad()
                client.held.clear()
                loss = as_losses(who, method.loss(model, batch, client), len(batch.y)).mean()
                loss.backward()
                optimiser.step(client.held)
                method.on_step(model, client)
                total += loss.detach()
                count += 1
        optimiser.zero_grad()
        model.eval()
        message = as_message(who, "upload", method.upload(model, client))
        for part in method.private:
            client.state[part] = copy_weights(_part(self._live, part))
        update = Update(task.client, client.size, copy_weights(self._sent), to_cpu(message))
        return update, total.item() / count if count else None

    def _client(self, weights: Weights, task: Task) -> Client:
        """The client as the method sees it."""
        self.cost = Cost()
        self._used = 0
        for module in (self.model, *self._frozen):
            self._meter(module)
        state = None if task.state is None else placed(task.state, self.shards.device, MEMORY_FORMAT)
        client = Client(
            terms=self.terms,
            round=task.round,
            y=self.shards.given[task.client],
            received=self._bind(weights),
            state={} if state is None else state,
            inbox=placed(task.inbox, self.shards.device, MEMORY_FORMAT),
            epochs=self.terms.epochs if task.epochs is None else task.epochs,
            rng=self._stream(task, "method"),
            batch_rng=self._stream(task, "batches"),
            bind=self._bind,
            map=lambda fn, views=("plain",): self._map(task, fn, views),
        )
        if state is None:
            made = self.method.client_state(client)
            client.state.update(as_state(self.method.name, "client_state", made))
        return client

    def _stream(self, task: Task, *name: str | int) -> np.random.Generator:
        """A stream of this client in this round and call."""
        return stream(self.seed, *name, "round", task.round, "client", task.client, *task.call)

    def _meter(self, model: nn.Module) -> None:
        for network in _networks(model):
            network.meter, network.autocasts = self.cost, self.autocasts

    @torch.no_grad()
    def _load(self, weights: Weights, state: State) -> None:
        """Copy the received weights, and what the client kept for itself, into the model."""
        source = dict(weights)
        for part in self.method.private:
            kept = as_part(self.method.name, state, part, _part(self._live, part))
            source |= {f"{part}.{name}": tensor for name, tensor in kept.items()}
        torch._foreach_copy_(list(self._live.values()), [source[name] for name in self._live])

    def _bind(self, weights: Weights) -> nn.Module:
        """A frozen model in evaluation mode over these weights, not copied."""
        if self._used == len(self._frozen):
            self._frozen.append(copy.deepcopy(self.model).requires_grad_(False).eval())
        model = self._frozen[self._used]
        self._used += 1
        self._meter(model)
        wrong = model.load_state_dict(weights, strict=False, assign=True)
        lost = {name for name in wrong.missing_keys if name in self._sent}
        if lost or wrong.unexpected_keys:
            raise KeyError(f"weights do not fit the model: {sorted(lost | set(wrong.unexpected_keys))}")
        return model

    def _map(self, task: Task, fn: Callable[[Batch], Any], views: Sequence[str]) -> Any:
        """fn over all examples in order; a view shows the same images whenever it is asked for."""
        client, size = task.client, len(self.shards.rows[task.client])
        rngs = [self._stream(task, "map", view, views[:i].count(view)) for i, view in enumerate(views)]
        parts = np.split(np.arange(size), range(EVALUATION_BATCH, size, EVALUATION_BATCH))
        with torch.no_grad():
            results = [fn(b) for b in self._batches(client, [Step(p) for p in parts], views, rngs)]
        if isinstance(results[0], Tensor):
            return torch.cat(results)
        return tuple(torch.cat(column) for column in zip(*results, strict=True))

    def _batches(
        self, client: int, steps: Sequence[Step], views: Sequence[str], rngs: Sequence[np.random.Generator]
    ) -> Iterator[Batch]:
        """The batches of some steps, augmented ahead in slabs; draws do not depend on the slabs."""
        if not steps:
            return
        device = self.shards.device
        sizes = [len(step.rows) for step in steps]
        rows = np.concatenate([step.rows for step in steps])
        draws = [
            draw_view(v, len(rows), self.views.augmentation, r) for v, r in zip(views, rngs, strict=True)
        ]
        index = to_device(rows, device)
        labels = self.shards.given[client][index]
        notes = _notes_on(steps, device)
        ends = np.cumsum(sizes)
        for first, last in self._slabs(ends):
            a, b = int(ends[first] - sizes[first]), int(ends[last - 1])
            images = self.shards.take(client, rows[a:b])
            rendered = [
                self.views.render(images, draw[a:b]).contiguous(memory_format=MEMORY_FORMAT) for draw in draws
            ]
            for i in range(first, last):
                lo, hi = int(ends[i] - sizes[i]), int(ends[i])
                pictures = tuple(view[lo - a : hi - a] for view in rendered)
                yield Batch(pictures, labels[lo:hi], index[lo:hi], notes[i])

    def _slabs(self, ends: np.ndarray) -> Iterator[tuple[int, int]]:
        """Ranges of steps whose images together stay near SLAB_PIXELS."""
        channels = self.shards.images.shape[1]
        most = max(1, SLAB_PIXELS // (channels * self.views.augmentation.size**2))
        first = 0
        while first < len(ends):
            start = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, start + most, side="right")))
            yield first, last
            first = last


def sent_weights(method: Method, model: nn.Module) -> Weights:
    """The part of the model that travels, sharing memory with it."""
    return {n: t for n, t in network_weights(model).items() if n.split(".")[0] not in method.private}


def _networks(model: nn.Module) -> list[Network]:
    return [module for module in model.modules() if isinstance(module, Network)]


def _part(weights: Weights, part: str) -> Weights:
    """The weights of one top-level part, named from there."""
    return {name[len(part) + 1 :]: t for name, t in weights.items() if name.split(".")[0] == part}


def _notes_on(steps: Sequence[Step], device: torch.device) -> list[dict[str, Any]]:
    """The notes of all steps with their tensors on the device, one copy for each name."""
    notes: list[dict[str, Any]] = [dict(step.note) for step in steps]
    for key in {k for note in notes for k, v in note.items() if isinstance(v, Tensor)}:
        owners = [note for note in notes if key in note]
        joined = to_device(torch.cat([note[key] for note in owners]).numpy(), device)
        for note, part in zip(owners, joined.split([len(note[key]) for note in owners]), strict=True):
            note[key] = part
    return notes
