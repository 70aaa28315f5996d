"""The method API: one class whose every default is FedAvg.

A method overrides only the hooks that it changes. Client hooks see batches of images, *given* labels and the
client's own state; true labels are not reachable. All messages between server and client go through `inbox`,
`upload`, `Federation.visit` or the weights, and the engine counts their bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Protocol, dataclass_transform

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.assumptions import READ
from flnl_bench.config import sampled_clients
from flnl_bench.engine.ledger import count_read
from flnl_bench.numerics import average, combined
from flnl_bench.random_streams import stream
from flnl_bench.ranges import check_ranges

Model = Any  # an nn.Module: a Network (with `features` and `both`), or what Method.build makes of some
Weights = dict[str, Tensor]  # parameters and buffers by name
Answers = dict[int, Mapping[str, Any]]  # of clients to a visit
State = dict[str, Any]  # tensors, arrays, numbers, strings, None, nested in dicts, lists and tuples


@dataclass(frozen=True)
class Terms:
    """The facts that server and clients know before a run starts."""

    rounds: int
    clients: int
    fraction: float  # share of the clients that take part in a round
    epochs: int  # E, local epochs
    batch_size: int
    classes: int
    expected_noise: float  # φ·E[ρ], the announced noise ratio, not the realised one
    iid: bool  # by construction of the partition
    lr: float = math.nan  # of local SGD, the same in all rounds; NaN only in terms that are made by hand

    def __getattribute__(self, name: str) -> Any:
        """Record in the run that a method reads a fact that real federations may not know."""
        if name in READ:
            count_read(name)
        return super().__getattribute__(name)

    @property
    def sampled(self) -> int:
        """Return m, the number of clients per round."""
        return sampled_clients(self.fraction, self.clients)

    @property
    def rounds_for_all(self) -> int:
        """Return ⌈K/m⌉, the rounds in which every client could be called once."""
        return math.ceil(self.clients / self.sampled)


@dataclass(frozen=True)
class Step:
    """The rows of one optimiser step, with a note for the loss."""

    rows: np.ndarray  # int64 row numbers within the client
    note: Mapping[str, Any] = field(default_factory=dict)  # tensors in it are copied to the device once


@dataclass(frozen=True)
class Batch:
    """A mini-batch of a client."""

    views: tuple[Tensor, ...]  # one normalised image tensor [B, C, H, W] per name in Method.views()
    y: Tensor  # given labels [B]
    index: Tensor  # rows within the client [B]
    note: Mapping[str, Any] = field(default_factory=dict)  # the step's note

    @property
    def x(self) -> Tensor:
        """Return the first view."""
        return self.views[0]


@dataclass
class Client:
    """A client as hooks see it, for one call."""

    terms: Terms
    round: int
    y: Tensor  # given labels [n]
    received: Model  # the global model as sent, frozen, in evaluation mode
    state: State  # survives rounds; the engine checkpoints it
    inbox: Mapping[str, Any]  # the server's message in addition to the weights
    rng: np.random.Generator  # for the method's draws on this client in this round
    batch_rng: np.random.Generator  # order of the examples: the same for every method
    bind: Callable[[Weights], Model]  # a frozen model that shares memory with other weights
    map: Callable[..., Any]  # map(fn, views=("plain",)): fn(batch) over its examples in order, no gradient
    image_shape: tuple[int, int, int]  # channels, height and width of every view
    held: dict[str, Tensor] = field(default_factory=dict)  # set by `loss`: flags of parts that skip the step
    scratch: dict[str, Any] = field(default_factory=dict)  # for this round only, e.g. a teacher's logits

    @property
    def size(self) -> int:
        """Return n_k, the number of examples."""
        return len(self.y)

    @property
    def epochs(self) -> int:
        """Return E, the local epochs of a training."""
        return self.terms.epochs

    def steps(
        self,
        rows: np.ndarray | None = None,
        epochs: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> list[Step]:
        """Return shuffled mini-batches over `rows` (default: all) for some epochs (default: E).

        The order is the same for every method, unless `rng` is given, from which it is then drawn. A short
        last batch is kept; a last batch of one example, on which BatchNorm cannot train, joins the batch
        before it.
        """
        rows = np.arange(self.size) if rows is None else rows
        steps = []
        for _ in range(self.epochs if epochs is None else epochs):
            order = (rng or self.batch_rng).permutation(rows)
            ends = [*range(self.terms.batch_size, len(order), self.terms.batch_size), len(order)]
            if len(ends) > 1 and ends[-1] - ends[-2] == 1:
                del ends[-2]
            steps += [Step(order[first:last]) for first, last in pairwise([0, *ends]) if last > first]
        return steps


@dataclass
class Server:
    """The server as hooks see it; the engine checkpoints it."""

    terms: Terms
    seed: int
    weights: Weights
    sizes: tuple[int, ...]
    round: int = 0
    state: State = field(default_factory=dict)

    def stream(self, *name: str | int) -> np.random.Generator:
        """Return the server's random stream of this name, e.g. ("sample", round)."""
        return stream(self.seed, "server", *name)


@dataclass(frozen=True)
class Update:
    """The message of a client after training."""

    client: int
    size: int  # n_k
    weights: Weights
    message: Mapping[str, Any]  # the result of Method.upload


@dataclass(frozen=True)
class Beliefs:
    """A method's judgements of one client's labels; only the recorder reads them."""

    clean: Tensor | np.ndarray | None = None  # bool [n]
    clean_probability: Tensor | np.ndarray | None = None  # [n]
    noise_ratio: float | None = None  # estimated share of wrong labels
    noisy_client: bool | None = None  # judged a noisy client
    labels: Tensor | np.ndarray | None = None  # int [n], current training labels, -1 for none
    pseudo_labels: Tensor | np.ndarray | None = None  # int [n], predicted by a model, -1 for none
    numbers: Mapping[str, float] = field(default_factory=dict)  # averaged over the round's clients
    losses: Tensor | np.ndarray | None = None  # float [n], by which the method separates clean from noisy


class Federation(Protocol):
    """The engine as a method sees it: two verbs over clients.

    Results are in the order of the client numbers, not of `ids`.
    """

    def train(self, ids: Sequence[int]) -> list[Update]:
        """Send the global weights and train the clients locally."""

    def visit(self, ids: Sequence[int], task: Callable[[Client], Mapping[str, Any]]) -> Answers:
        """Send the global weights, run `task` on each client, and return the answers by client.

        `task` is a bound method of the method or a module-level function, so that it can run in another
        process.
        """


@dataclass_transform(frozen_default=True)
class Method:
    """FedAvg with hooks. Annotated attributes of a subclass are its hyper-parameters."""

    name: ClassVar[str]
    reference: ClassVar[str] = ""  # authors, title, venue
    # Its declaration, if its plugin is one file; a package has methods.toml.
    title: ClassVar[str] = ""  # as in its paper: FedGR
    colour: ClassVar[str] = ""  # of its lines, #rrggbb
    marker: ClassVar[str] = ""  # of its lines, one of matplotlib's
    place: ClassVar[float] = math.inf  # in tables: the smallest first
    assumes: ClassVar[tuple[str, ...]] = ()  # keys of flnl_bench.assumptions.ASSUMPTIONS
    version: ClassVar[int] = 1  # raised by its author when its numbers change, so that rows stay apart
    # Name → changed hyper-parameters, or a subclass: "module:Class".
    variants: ClassVar[Mapping[str, Mapping[str, Any] | str]] = {}
    private: ClassVar[tuple[str, ...]] = ()  # parts of build() that train but stay in client.state
    members: ClassVar[tuple[str, ...]] = ()  # networks of build() whose test accuracies are recorded

    def __init_subclass__(cls) -> None:
        """Turn the annotated attributes into fields of a frozen dataclass, and check their ranges."""
        dataclasses.dataclass(frozen=True)(cls)
        initialise = cls.__init__

        # Not __post_init__: a method may have its own.
        @functools.wraps(initialise)
        def initialise_in_range(self: Method, *args: Any, **kwargs: Any) -> None:
            initialise(self, *args, **kwargs)
            check_ranges(self)

        cls.__init__ = initialise_in_range  # type: ignore[assignment, method-assign]

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """Return the number of rounds before the method's own mechanism is in full use.

        The engine does not call it; tests and `plugin check` do, to know which rounds show the mechanism.
        """
        return 0

    # -- what is trained ---------------------------------------------------------------------------
    def views(self) -> tuple[str, ...]:
        """Return the views of each training batch: "plain", "weak", "strong" or "strong-if-colour"."""
        return ("weak",)

    def build(self, new_net: Callable[[], Model]) -> Model:
        """Return the model that is sent, trained and averaged; two networks are put into a ModuleDict."""
        return new_net()

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """Return the logits that are evaluated."""
        logits: Tensor = model(x)
        return logits

    # -- on a client -------------------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """Return the initial state of a client, at its first call."""
        return {}

    def on_receive(self, model: Model, client: Client) -> None:
        """Prepare the first step of a round."""

    def plan(self, model: Model, client: Client) -> Iterator[Sequence[Step]]:
        """Yield the steps of the round in portions; the model is trained on a portion before the next one."""
        yield client.steps()

    def loss(self, model: Model, batch: Batch, client: Client) -> Tensor:
        """Return one loss per example; the mean is minimised."""
        return F.cross_entropy(model(batch.x), batch.y, reduction="none")

    def on_gradient(self, model: Model, batch: Batch, client: Client) -> None:
        """Change the gradients before the optimiser step, e.g. add those of a proximal term."""

    def on_step(self, model: Model, client: Client) -> None:
        """Act after every optimiser step."""

    def upload(self, model: Model, client: Client) -> Mapping[str, Any]:
        """Return what is sent in addition to the weights and n_k; the trained model is in evaluation mode."""
        return {}

    # -- on the server -----------------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """Return the server's state before the first round."""
        return {}

    def sample(self, server: Server) -> list[int]:
        """Return the clients of this round."""
        draws = server.stream("sample", server.round)
        chosen = draws.choice(server.terms.clients, server.terms.sampled, replace=False)
        return [int(k) for k in chosen]

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """Return a message to a client in addition to the weights."""
        return {}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """Return the next global weights: the mean of the finite models, weighted by n_k.

        A model with a NaN or infinite weight has diverged and is left out; if all have, the global weights
        stay.
        """
        return combined(updates, average, server.weights)

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """Run one round, and return numbers to record; override it for further exchanges with clients."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        return {}

    # -- for the recorder alone --------------------------------------------------------------------
    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Return the method's judgements of a client's labels, from the server's and the client's state."""
        return Beliefs()


def network_weights(model: nn.Module) -> Weights:
    """Return parameters and buffers of a model by name, sharing memory with it.

    Integer buffers, e.g. counters of batches, are left out because they have no mean.
    """
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def copy_weights(weights: Weights) -> Weights:
    """Return a copy that shares no memory."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


@torch.no_grad()
def mix_into(target: Weights, source: Weights, keep: float) -> None:
    """In place, target ← keep·target + (1 − keep)·source: one step of a moving average of weights."""
    torch._foreach_lerp_(list(target.values()), [source[name] for name in target], 1.0 - keep)
