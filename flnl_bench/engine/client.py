"""The work of one client, and the reference executor, which trains one client after the other.

Nothing waits for the device within a local epoch: all random draws of a portion of steps are made on the CPU
before it starts, and copied once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

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
from flnl_bench.config import Training
from flnl_bench.data.dataset import Augmentation
from flnl_bench.engine.augmentation import Views
from flnl_bench.engine.batches import FederatedImages, as_images
from flnl_bench.engine.devices import CPU, MEMORY_FORMAT, configure_torch, placed, seeded, sent
from flnl_bench.engine.hook_checks import as_losses, as_message, as_part, as_portions, as_state, check_plain
from flnl_bench.engine.ledger import Cost, take_work
from flnl_bench.engine.sgd import SGD
from flnl_bench.models.networks import Network
from flnl_bench.random_streams import seed_of, stream

T = TypeVar("T")
Images = Mapping[str, np.ndarray]  # "train" and "test": uint8 [N, C, H, W]
EVALUATION_BATCH = 200  # 512 is twice as slow on CPUs: the allocator returns such blocks to the system


@dataclass(frozen=True)
class Call:
    """A call of one client. A worker needs nothing else to answer it, except for the global weights."""

    client: int
    round: int
    name: tuple[str | int, ...]  # distinguishes calls of one round; empty for the first training
    inbox: Mapping[str, Any]
    state: State | None  # None: on the first call
    task: Callable[[Client], Mapping[str, Any]] | None = None  # of a visit


@dataclass(frozen=True)
class Reply:
    """The answer to a call, the client's new state, and the cost."""

    answer: Any  # Update after training, a mapping after a visit
    state: State
    cost: Cost
    loss: Tensor | None = None  # summed over the steps; reading it would wait for the device
    steps: int = 0
    stacked: int = 0  # steps that were computed together with those of other clients
    replayed: int = 0  # steps that were replayed as a CUDA graph


# A training that stops before each call of `loss` with the batch, and after it with the losses.
Stages = Generator[Batch | Tensor, None, Reply]


@dataclass
class LocalRun:
    """The training of one client in one round."""

    model: nn.Module
    client: Client
    optimiser: SGD
    loss: Tensor  # summed over the steps on the device: reading each loss would wait
    portion: int = 0
    steps: int = 0
    replayed: int = 0


def build_worker(
    device: torch.device,
    images: Images,
    *,
    method: Method,
    terms: Terms,
    model: nn.Module,
    training: Training,
    seed: int,
    rows: tuple[np.ndarray, ...],
    given: tuple[np.ndarray, ...],
    augmentation: Augmentation,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    kind: type[ClientWorker],
) -> ClientWorker:
    """Build a worker on a device, and set up torch in this process for it.

    Every process builds its own from the same parts: the model is on the CPU and is copied, `rows` and
    `given` are the image rows and given labels of each client. True labels are not among the parts.
    """
    configure_torch(device, training.precision)
    federated = FederatedImages(
        train=as_images(images["train"], device),
        test=as_images(images["test"], device),
        given=tuple(torch.from_numpy(labels).to(device) for labels in given),
        rows=rows,
        views=Views(augmentation, mean, std, device),
        device=device,
    )
    model = copy.deepcopy(model).to(device).to(memory_format=MEMORY_FORMAT)
    return kind(method, terms, federated, training, model, seed)


class Frozen:
    """A model for weights that are not trained; it shares memory with the weights it is bound to."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.networks = model, networks_of(model)
        modules = dict(model.named_modules(remove_duplicate=False))
        self._places: dict[str, tuple[dict[str, Any], str]] = {}  # by name: where a module keeps the tensor
        for name, tensor in model.state_dict(keep_vars=True).items():
            owner, _, last = name.rpartition(".")
            kept = modules[owner]._parameters if isinstance(tensor, nn.Parameter) else modules[owner]._buffers
            self._places[name] = (kept, last)

    def bind(self, weights: Weights, needed: Iterable[str]) -> None:
        """Replace the weights; refuse unknown names, other shapes, and a lack of those that are needed."""
        # As load_state_dict(assign=True), which takes as long as a training step of a small network.
        wrong = {*(weights.keys() - self._places.keys()), *(set(needed) - weights.keys())}
        if wrong:
            raise KeyError(f"weights do not fit the model: {sorted(wrong)}")
        for name, tensor in weights.items():
            kept, last = self._places[name]
            before = kept[last]
            if before.shape != tensor.shape:
                shapes = f"{name} is {tuple(tensor.shape)}, not {tuple(before.shape)}"
                raise ValueError(f"weights do not fit the model: {shapes}")
            trains = isinstance(before, nn.Parameter)
            kept[last] = nn.Parameter(tensor.detach(), requires_grad=False) if trains else tensor.detach()


@dataclass
class ClientWorker:
    """Models and data on one device. It answers one call at a time, so it is also the simplest executor."""

    method: Method
    terms: Terms
    images: FederatedImages
    training: Training
    model: nn.Module  # trained in place for each client in turn
    seed: int
    cost: Cost = field(default_factory=Cost)
    state_device: torch.device = CPU  # where replies have the states of clients

    def __post_init__(self) -> None:
        self.device = self.images.device
        # Models for weights that are not trained. They are built once and get other weights at every use:
        # copying a network costs more than a training step of a small one.
        self._frozen: list[Frozen] = []
        self._used = 0
        self._trained = networks_of(self.model)
        self._meter(self._trained)
        if self.training.compile == "default":
            for network in self._trained:
                network.backbone.compile()
        self._live = network_weights(self.model)
        others = [t for n, t in self.model.state_dict(keep_vars=True).items() if n not in self._live]
        self._built = [(tensor, tensor.clone()) for tensor in others]  # counters, tables of whole numbers
        self._sent = sent_weights(self.method, self.model)

    # -- as an executor ----------------------------------------------------------------------------
    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train clients, in groups of `Training.stack`."""
        weights = placed(weights, self.device)  # the method's own aggregation may have lost the layout
        for group in grouped(calls, self.training.stack):
            yield from self.train_group(weights, group)

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Run the tasks, one client after the other."""
        weights = placed(weights, self.device)
        return (self.visit_client(weights, call) for call in calls)

    def logits(self, weights: Weights, part: str, rows: np.ndarray, member: str | None = None) -> Tensor:
        """Return the logits of the global model, or of one network of it, for images of "train" or "test"."""
        model = self.global_model(weights)
        predict = model.get_submodule(member) if member else partial(self.method.predict, model)
        outputs = []
        with torch.inference_mode():  # a little cheaper than no_grad; these never meet a gradient
            for batch in np.split(rows, range(EVALUATION_BATCH, len(rows), EVALUATION_BATCH)):
                outputs.append(predict(self.images.plain(part, batch)))
        return torch.cat(outputs)

    def close(self) -> None:
        """Do nothing: there are no other processes."""

    def train_group(self, weights: Weights, calls: Sequence[Call]) -> list[Reply]:
        """Train one client after the other."""
        return [self.train_client(weights, call) for call in calls]

    # -- one client --------------------------------------------------------------------------------
    def train_client(self, weights: Weights, call: Call) -> Reply:
        """Train a client from the global weights."""
        with self._seeded(call):
            return completed(self.stages(weights, call))

    def visit_client(self, weights: Weights, call: Call) -> Reply:
        """Run a task of the method on a client, without training."""
        assert call.task is not None
        with self._seeded(call):
            client = self._client(weights, call)
            answer = as_message(self.method.name, "a task of visit", call.task(client))
            return self._reply(client, sent(answer))

    def _reply(self, client: Client, answer: Any, run: LocalRun | None = None) -> Reply:
        check_plain(client.state, f"{self.method.name}: client.state")
        self.cost.add(take_work())  # in one process it may include the server's work of this round
        reply = Reply(answer, sent(client.state, self.state_device), self.cost)
        return replace(reply, loss=run.loss, steps=run.steps, replayed=run.replayed) if run else reply

    def global_model(self, weights: Weights) -> nn.Module:
        """Return a frozen model with these weights; the next call overwrites it."""
        self._used = 0
        return self._bind(weights)

    def stages(self, weights: Weights, call: Call) -> Stages:
        """Train a client from the global weights; the caller runs the backward passes."""
        client = self._client(weights, call)
        model, method, who = self.model, self.method, self.method.name
        self._load(weights, client.state)
        model.eval()
        method.on_receive(model, client)
        protocol = self.training
        optimiser = SGD(model.named_parameters(), protocol.lr, protocol.momentum, protocol.weight_decay)
        run = LocalRun(model, client, optimiser, torch.zeros((), device=self.device))
        model.train()
        # One stream per view: adding or removing a view does not change the draws of the others.
        rngs = [self._stream(call, "view", i) for i in range(len(method.views()))]
        for portion in as_portions(who, method.plan(model, client)):
            for batch in self.images.batches(call.client, portion, method.views(), rngs):
                yield from self.step(run, batch)
                run.steps += 1
            run.portion += 1
        optimiser.zero_grad()  # frees the memory of the gradients before `upload`
        model.eval()
        message = as_message(who, "upload", method.upload(model, client))
        for part in method.private:
            client.state[part] = _part(self._live, part)  # copied with the rest of the state
        update = Update(call.client, client.size, copy_weights(self._sent), sent(message))
        return self._reply(client, update, run)

    def step(self, run: LocalRun, batch: Batch) -> Generator[Batch | Tensor, None, None]:
        """Take one step of the optimiser."""
        method, model, client = self.method, run.model, run.client
        run.optimiser.zero_grad()
        client.held.clear()
        yield batch
        losses = as_losses(method.name, method.loss(model, batch, client), len(batch.y))
        mean = losses.detach().mean()
        yield losses
        method.on_gradient(model, batch, client)
        run.optimiser.step(client.held)
        method.on_step(model, client)
        run.loss += mean

    def _client(self, weights: Weights, call: Call) -> Client:
        """Make the client object that the method sees."""
        self.cost = Cost()
        self._used = 0
        self._meter(self._trained)
        for frozen in self._frozen:
            self._meter(frozen.networks)
        state = None if call.state is None else placed(call.state, self.device)
        client = Client(
            terms=self.terms,
            round=call.round,
            y=self.images.given[call.client].clone(),  # a method may relabel in place
            received=self._bind(weights),
            state={} if state is None else state,
            inbox=placed(sent(call.inbox, self.device), self.device),
            rng=self._stream(call, "method"),
            batch_rng=self._stream(call, "batches"),
            bind=self._bind,
            map=lambda fn, views=("plain",): self._map(call, fn, views),
            image_shape=self.images.shape,
        )
        if state is None:
            initial = self.method.client_state(client)
            client.state.update(as_state(self.method.name, "client_state", initial))
        return client

    def _stream(self, call: Call, *name: str | int) -> np.random.Generator:
        """Return a random stream of this client in this round and call."""
        return stream(self.seed, *name, *_call_name(call))

    def _seeded(self, call: Call) -> AbstractContextManager[None]:
        """Seed torch's own generators for this call: dropout draws from them."""
        return seeded(seed_of(self.seed, "torch", *_call_name(call)), self.device)

    def _meter(self, networks: Iterable[Network]) -> None:
        for network in networks:
            network.meter, network.autocasts = self.cost, self.training.precision == "bfloat16"

    @torch.no_grad()
    def _load(self, weights: Weights, state: State) -> None:
        """Reset the model, and copy the received weights and the client's private parts into it."""
        for tensor, built in self._built:
            tensor.copy_(built)
        source = dict(weights)
        for part in self.method.private:
            kept = as_part(self.method.name, state, part, _part(self._live, part))
            source |= {f"{part}.{name}": tensor for name, tensor in kept.items()}
        torch._foreach_copy_(list(self._live.values()), [source[name] for name in self._live])

    def _bind(self, weights: Weights) -> nn.Module:
        """Return a frozen model in evaluation mode that shares memory with these weights."""
        if self._used == len(self._frozen):
            self._frozen.append(Frozen(copy.deepcopy(self.model).requires_grad_(False).eval()))
        frozen = self._frozen[self._used]
        self._used += 1
        self._meter(frozen.networks)
        frozen.bind(weights, self._sent)
        return frozen.model

    def _map(self, call: Call, fn: Callable[[Batch], Any], views: Sequence[str]) -> Any:
        """Apply fn to all examples in order; a view gives the same images at each call."""
        client, size = call.client, len(self.images.rows[call.client])
        rngs = [self._stream(call, "map", view, views[:i].count(view)) for i, view in enumerate(views)]
        parts = np.split(np.arange(size), range(EVALUATION_BATCH, size, EVALUATION_BATCH))
        # Tensors of inference_mode could not enter a loss later, as a teacher's logits do.
        with torch.no_grad():
            results = [fn(b) for b in self.images.batches(client, [Step(p) for p in parts], views, rngs)]
        if isinstance(results[0], Tensor):
            return torch.cat(results)
        return tuple(torch.cat(column) for column in zip(*results, strict=True))


def completed(stages: Generator[Batch | Tensor, None, T]) -> T:
    """Run the stages of a training or a step, with the backward passes; return what they return."""
    while True:
        try:
            stage = next(stages)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(stage, Tensor):
            backward([stage])
            del stage  # and the gradient's nodes with it, before a graph is recorded


def backward(losses: Sequence[Tensor]) -> None:
    """Compute the gradients of the means of losses [B], each of its own network."""
    # Not of `losses.mean()`: its nodes take 1 % of a step of a small network.
    torch.autograd.backward(losses, [torch.full_like(each, 1 / max(1, len(each))) for each in losses])


def grouped(calls: Iterable[Call], size: int) -> Iterator[list[Call]]:
    """Yield the calls in lists of `size`; the last one may be shorter."""
    rest = iter(calls)
    while group := list(islice(rest, size)):
        yield group


def _call_name(call: Call) -> tuple[str | int, ...]:
    """Return the last part of the names of a call's random streams."""
    return ("round", call.round, "client", call.client, *call.name)


def sent_weights(method: Method, model: nn.Module) -> Weights:
    """Return the weights that are sent (all but private parts), sharing memory with the model."""
    return {n: t for n, t in network_weights(model).items() if n.split(".")[0] not in method.private}


def networks_of(model: nn.Module) -> list[Network]:
    """Return the networks of a method's model."""
    return [module for module in model.modules() if isinstance(module, Network)]


def _part(weights: Weights, part: str) -> Weights:
    """Return the weights of one top-level part, with names relative to it."""
    return {name[len(part) + 1 :]: t for name, t in weights.items() if name.split(".")[0] == part}
