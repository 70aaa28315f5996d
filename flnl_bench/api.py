"""The method API: one class whose every default is FedAvg.

A method overrides only what it changes. Client hooks see images through batches, *given* labels and
the client's own state; true labels are not reachable. Whatever travels between server and client
goes through `inbox`, `upload`, `Federation.visit` or the weights, and the engine counts its bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, dataclass_transform

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.config import sampled_clients
from flnl_bench.numerics import average, combined
from flnl_bench.random_streams import stream
from flnl_bench.ranges import check_ranges

Model = Any  # an nn.Module: a Network (with `features` and `both`), or what Method.build makes of some
Weights = dict[str, Tensor]  # parameters and buffers by name
Answers = dict[int, Mapping[str, Any]]  # of clients to a visit
State = dict[str, Any]  # tensors, arrays, numbers, strings, None, nested in dicts, lists and tuples


@dataclass(frozen=True)
class Terms:
    """What server and clients know about the run before it starts."""

    rounds: int
    clients: int
    fraction: float  # share of the clients that take part in a round
    epochs: int  # E, local epochs
    batch_size: int
    classes: int
    expected_noise: float  # φ·E[ρ], the noise ratio that the setting announces, not the realised one
    iid: bool  # whether the partition is IID by construction

    @property
    def sampled(self) -> int:
        """m, the number of clients in a round."""
        return sampled_clients(self.fraction, self.clients)

    @property
    def rounds_for_all(self) -> int:
        """⌈K/m⌉, the rounds in which every client could be called once."""
        return math.ceil(self.clients / self.sampled)


@dataclass(frozen=True)
class Step:
    """The rows of one optimiser step, with whatever the loss needs to know about it."""

    rows: np.ndarray  # int64 row numbers within the client
    note: Mapping[str, Any] = field(default_factory=dict)  # tensors in it are copied to the device once


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client."""

    views: tuple[Tensor, ...]  # one normalised image tensor [B, C, H, W] per name in Method.views()
    y: Tensor  # given labels [B]
    index: Tensor  # rows within the client [B]
    note: Mapping[str, Any] = field(default_factory=dict)  # the step's note

    @property
    def x(self) -> Tensor:
        """The first view."""
        return self.views[0]


@dataclass
class Client:
    """What a client sees while it works."""

    terms: Terms
    round: int
    y: Tensor  # given labels [n]
    received: Model  # the global model as sent, frozen, in evaluation mode
    state: State  # survives rounds; the engine checkpoints it
    inbox: Mapping[str, Any]  # what the server sent beside the weights
    rng: np.random.Generator  # the method's own draws on this client in this round
    batch_rng: np.random.Generator  # order of the examples: the same for every method
    bind: Callable[[Weights], Model]  # a frozen model that shares memory with other weights
    map: Callable[..., Any]  # map(fn, views=("plain",)): fn(batch) over its examples in order, no gradient
    image_shape: tuple[int, int, int]  # channels, height and width of every view
    held: dict[str, Tensor] = field(default_factory=dict)  # set by `loss`: flags of parts that skip this step
    scratch: dict[str, Any] = field(default_factory=dict)  # for this round only, e.g. a teacher's logits

    @property
    def size(self) -> int:
        """n_k, the number of examples."""
        return len(self.y)

    @property
    def epochs(self) -> int:
        """E, the local epochs of a training."""
        return self.terms.epochs

    def steps(
        self,
        rows: np.ndarray | None = None,
        epochs: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> list[Step]:
        """Shuffled mini-batches over `rows` (default: all) for some epochs (default: all of them).

        The order is that of every method; with `rng`, say the client's own, it is drawn from there, and what
        every method draws stays as it is. A short last batch is kept; a last batch of one example, on which
        BatchNorm cannot train, joins the batch before it.
        """
        rows = np.arange(self.size) if rows is None else rows
        steps = []
        for _ in range(self.epochs if epochs is None else epochs):
            order = (rng or self.batch_rng).permutation(rows)
            starts = list(range(0, len(order), self.terms.batch_size))
            if len(starts) > 1 and len(order) - starts[-1] == 1:
                starts.pop()
            steps += [Step(part) for part in np.split(order, starts[1:]) if len(part)]
        return steps


@dataclass
class Server:
    """What the server knows; the engine checkpoints it."""

    terms: Terms
    seed: int
    weights: Weights
    sizes: tuple[int, ...]
    round: int = 0
    state: State = field(default_factory=dict)

    def stream(self, *name: str | int) -> np.random.Generator:
        """The generator of the server's draws called `name`, e.g. ("sample", round)."""
        return stream(self.seed, "server", *name)


@dataclass(frozen=True)
class Update:
    """What one client sends back after training."""

    client: int
    size: int  # n_k
    weights: Weights
    message: Mapping[str, Any]  # what Method.upload returned


@dataclass(frozen=True)
class Beliefs:
    """What a method thinks of one client's labels; only the recorder reads it."""

    clean: Tensor | np.ndarray | None = None  # bool [n], judged clean
    clean_probability: Tensor | np.ndarray | None = None  # [n]
    noise_ratio: float | None = None  # estimated share of wrong labels
    noisy_client: bool | None = None  # judged a noisy client
    labels: Tensor | np.ndarray | None = None  # int [n], labels that are trained on now, -1 for none
    pseudo_labels: Tensor | np.ndarray | None = None  # int [n], labels guessed by a model, -1 for none
    numbers: Mapping[str, float] = field(default_factory=dict)  # averaged over the round's clients
    losses: Tensor | np.ndarray | None = None  # float [n], by which its sieve parts clean from noisy


class Federation(Protocol):
    """The engine as a method sees it: two verbs over clients.

    Results come in the order of the client numbers, whatever the order of `ids`.
    """

    def train(self, ids: Sequence[int]) -> list[Update]:
        """Send the global weights and train the clients locally."""

    def visit(self, ids: Sequence[int], task: Callable[[Client], Mapping[str, Any]]) -> Answers:
        """Send the global weights, run `task` on each client; what it returns travels up.

        `task` is a bound method of the method (or a module-level function), so that it can run in
        another process.
        """


@dataclass_transform(frozen_default=True)
class Method:
    """FedAvg with hooks. Annotated attributes of a subclass are its hyper-parameters."""

    name: ClassVar[str]
    reference: ClassVar[str] = ""  # authors, title, venue
    # How it is shown, if its plugin is one file; a package says it in methods.toml.
    title: ClassVar[str] = ""  # as people write it: FedGR
    colour: ClassVar[str] = ""  # of its lines, #rrggbb
    marker: ClassVar[str] = ""  # of its lines, one of matplotlib's
    place: ClassVar[float] = math.inf  # in tables: the smallest first
    version: ClassVar[int] = 1  # raised by its author when its numbers change: other runs, other rows
    # Named changes of hyper-parameters, or the place of a subclass: "module:Class".
    variants: ClassVar[Mapping[str, Mapping[str, Any] | str]] = {}
    private: ClassVar[tuple[str, ...]] = ()  # parts of build() that train but stay in client.state
    members: ClassVar[tuple[str, ...]] = ()  # networks of build() whose own test accuracy is recorded too

    def __init_subclass__(cls) -> None:
        """Make the annotated attributes the fields of a frozen dataclass, whose ranges are checked."""
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
        """The rounds before the method's own mechanism is in full use; 0 if it is from the start.

        The engine does not ask; tests and `plugin check` do, to know in which rounds they see it.
        """
        return 0

    # -- what is trained ---------------------------------------------------------------------------
    def views(self) -> tuple[str, ...]:
        """The augmentations of each training batch: "plain", "weak", "strong" or "strong-if-colour"."""
        return ("weak",)

    def build(self, new_net: Callable[[], Model]) -> Model:
        """The model that is sent, trained and averaged; two models make a ModuleDict."""
        return new_net()

    def predict(self, model: Model, x: Tensor) -> Tensor:
        """The logits that are evaluated."""
        logits: Tensor = model(x)
        return logits

    # -- on a client -------------------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """The state of a client that is seen for the first time."""
        return {}

    def on_receive(self, model: Model, client: Client) -> None:
        """Work before the first step of a round."""

    def plan(self, model: Model, client: Client) -> Iterator[Sequence[Step]]:
        """The steps of the round, in portions; the model is trained on a portion before the next is asked."""
        yield client.steps()

    def loss(self, model: Model, batch: Batch, client: Client) -> Tensor:
        """One loss per example; its mean is minimised."""
        return F.cross_entropy(model(batch.x), batch.y, reduction="none")

    def on_step(self, model: Model, client: Client) -> None:
        """Work after every optimiser step."""

    def upload(self, model: Model, client: Client) -> Mapping[str, Any]:
        """What travels up beside the weights and n_k; the trained model is in evaluation mode."""
        return {}

    # -- on the server -----------------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The server's state before the first round."""
        return {}

    def sample(self, server: Server) -> list[int]:
        """The clients of this round."""
        draws = server.stream("sample", server.round)
        chosen = draws.choice(server.terms.clients, server.terms.sampled, replace=False)
        return [int(k) for k in chosen]

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """What travels down to a client beside the weights."""
        return {}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The next global weights: the mean weighted by n_k of the models that are finite.

        A model with a weight that is NaN or infinite has diverged and is left out; if all have, the global
        weights stay.
        """
        return combined(updates, average, server.weights)

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """One round; override it to exchange more than once. Returns numbers worth recording."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        return {}

    # -- for the recorder alone --------------------------------------------------------------------
    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """What the method thinks of a client's labels, from the server's and the client's state."""
        return Beliefs()


def network_weights(model: nn.Module) -> Weights:
    """Parameters and buffers of a model by name, sharing memory.

    Those of whole numbers, which have no mean, are left out: tables that are as built, counters of batches.
    """
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def copy_weights(weights: Weights) -> Weights:
    """A copy that shares no memory."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


@torch.no_grad()
def mix_into(target: Weights, source: Weights, keep: float) -> None:
    """In place, target ← keep·target + (1 − keep)·source: one step of a moving average of weights."""
    torch._foreach_lerp_(list(target.values()), [source[name] for name in target], 1.0 - keep)
