"""The engine: rounds of a method over a federation, and evaluation of the global model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.api import Answers, Client, Method, Server, State, Terms, Update, Weights, copy_weights
from flnl_bench.config import Training
from flnl_bench.data import Dataset
from flnl_bench.engine.checkpoint import Name
from flnl_bench.engine.client import Call, ClientWorker, Reply, build_worker, sent_weights
from flnl_bench.engine.devices import CPU, Devices, configure_torch, placed, seeded, to_cpu
from flnl_bench.engine.graphs import GraphedWorker
from flnl_bench.engine.hook_checks import as_clients, as_numbers, as_state, check_weights
from flnl_bench.engine.ledger import Cost, count_bytes, leaving, merge, take_work
from flnl_bench.engine.pool import ProcessPool
from flnl_bench.engine.stacked import StackedWorker
from flnl_bench.engine.states import OnHost, States
from flnl_bench.engine.tracked import KEYS, Path, TrackedState
from flnl_bench.errors import expect
from flnl_bench.models import make_network
from flnl_bench.random_streams import seed_of, stream
from flnl_bench.scenario import Scenario, parse_partition


class Executor(Protocol):
    """Does the clients' work: one worker in this process, or a pool of processes.

    Calls are independent, and replies come in their order. All executors give the same numbers, and with
    `Training.stack` the same except for rounding.
    """

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train clients from the global weights."""

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Run the task of each call on its client."""

    def logits(self, weights: Weights, part: str, rows: np.ndarray, member: str | None = None) -> Tensor:
        """Return the logits of the global model, or of one network of it, for images of "train" or "test"."""

    def close(self) -> None:
        """Release processes and devices."""


@dataclass
class LocalFederation:
    """All clients, simulated on this machine: calls them, and counts messages and costs."""

    method: Method
    server: Server
    executor: Executor
    states: MutableMapping[int, State] = field(default_factory=dict)
    drop: float = 0.0  # chance of a client not to answer the training calls of a round
    order: Callable[[Sequence[int]], Sequence[int]] = sorted  # the order of work changes no number
    initial_reads: frozenset[str] = frozenset()  # by `server_state`; part of every round, so of a resumed run

    def __post_init__(self) -> None:
        self.begin_round()

    def begin_round(self) -> None:
        """Reset the counters of a round."""
        self.cost = Cost()
        self.trained: set[int] = set()
        self.calls: dict[tuple[str, int], int] = {}  # verb and client → calls in this round
        self.losses: list[tuple[Tensor, int, int]] = []  # sum of the losses of all steps, steps, n_k
        self.steps: Counter[str] = Counter()  # all, and those that were stacked or replayed
        self.messages: list[Mapping[str, Any]] = []  # the ledger entry of each
        take_work()  # drop work between rounds

    def train(self, ids: Sequence[int]) -> list[Update]:
        """Send the global weights and train the clients locally; clients that drop out give no update."""
        updates: list[Update] = []
        for k, reply in self._call("train", ids):
            update: Update = reply.answer
            self.trained.add(k)
            self.cost.bytes_up += count_bytes([update.weights, update.size, update.message])
            self._record(k, {"n_k": update.size, **update.message})
            self.steps.update(steps=reply.steps, stacked=reply.stacked, replayed=reply.replayed)
            if reply.loss is not None and reply.steps:
                self.losses.append((reply.loss, reply.steps, update.size))
            updates.append(update)
        # The last bit of a mean depends on the order of its sum, and `order` must not change a number.
        return sorted(updates, key=lambda update: update.client)

    def visit(self, ids: Sequence[int], task: Callable[[Client], Mapping[str, Any]]) -> Answers:
        """Send the global weights, run `task` on each client, and return the answers."""
        answers: Answers = {}
        for k, reply in self._call("visit", ids, task=task):
            answers[k] = reply.answer
            self.cost.bytes_up += count_bytes(answers[k])
            self._record(k, answers[k])
        return dict(sorted(answers.items()))

    def _record(self, k: int, message: Mapping[str, Any]) -> None:
        self.messages.append(leaving(message, self.server.sizes[k], self.server.terms.classes))

    @property
    def counts(self) -> dict[str, Any]:
        """Return the work of this round other than bytes and passes, and the content of messages."""
        self.cost.add(take_work())  # the server's
        return {
            "samples": sum(
                n * self.server.sizes[k] for (verb, k), n in self.calls.items() if verb == "train"
            ),
            "mixtures": self.cost.mixtures,
            "searches": self.cost.searches,
            "reads": sorted(self.cost.reads | self.initial_reads),
            "sent": merge(self.messages),
        }

    @property
    def train_loss(self) -> float | None:
        """Return the mean training loss over the round's clients, weighted by n_k, as a float32."""
        if not self.losses:
            return None
        sums = torch.stack([total for total, _, _ in self.losses]).tolist()  # read together: one wait
        # In order, because a sum of floats depends on it.
        losses = sorted(
            (total / steps, size) for total, (_, steps, size) in zip(sums, self.losses, strict=True)
        )
        total = sum(size for _, size in losses)
        return float(np.float32(sum(loss * size for loss, size in losses) / total)) if total else None

    @property
    def seen(self) -> set[int]:
        """Return the clients that were called in this round."""
        return {k for _, k in self.calls}

    def _call(self, verb: str, ids: Sequence[int], **details: Any) -> Iterator[tuple[int, Reply]]:
        """Yield the replies of some clients to one call each."""
        chosen = self.order(as_clients(self.method.name, verb, ids, self.server.terms.clients))
        if verb == "train" and self.drop:
            chosen = [k for k in chosen if not self._drops_out(k)]
        # A generator saves memory: in one process, an inbox (maybe whole models) is freed after its client.
        calls = (self._make_call(verb, k, **details) for k in chosen)
        execute = self.executor.train if verb == "train" else self.executor.visit
        for k, reply in zip(chosen, execute(self.server.weights, calls), strict=True):
            self.states[k] = reply.state
            self.cost.add(reply.cost)
            yield k, reply

    def _drops_out(self, k: int) -> bool:
        """Whether a client does not answer in this round; then it has received the message in vain."""
        absent = stream(self.server.seed, "drop", self.server.round, k).random() < self.drop
        if absent:
            self.cost.bytes_down += count_bytes([self.server.weights, self.method.inbox(self.server, k)])
        return absent

    def _make_call(self, verb: str, k: int, **details: Any) -> Call:
        inbox = self.method.inbox(self.server, k)
        self.cost.bytes_down += count_bytes([self.server.weights, inbox])
        before = self.calls.get((verb, k), 0)
        self.calls[verb, k] = before + 1
        # A visit must not change the batches of the training after it: they are the same for all methods.
        name = () if verb == "train" and not before else (verb, before)
        return Call(k, self.server.round, name, inbox, self.states.get(k), **details)


@dataclass(frozen=True)
class RoundReport:
    """The engine's results of one round."""

    round: int
    accuracy: float  # of the global model on the test set, in percent
    loss: float  # test loss
    class_accuracy: tuple[float | None, ...]  # of the global model on each class of the test set, in percent
    train_loss: float | None
    clients: tuple[int, ...]  # that trained
    bytes_down: int
    bytes_up: int
    forward: int
    backward: int
    seconds: float
    method: Mapping[str, float]  # the method's own numbers
    counts: Mapping[str, Any]  # of samples, mixtures and searches, and the content of messages


class Engine:
    """A federation in training; call `run_round` until `round == rounds`."""

    def __init__(
        self,
        method: Method,
        dataset: Dataset,
        scenario: Scenario,
        training: Training,
        seed: int,
        devices: Devices,
    ) -> None:
        """Build the federation.

        Args:
            method: what is trained.
            dataset: images and true labels.
            scenario: which client holds which images, with which labels.
            training: the protocol.
            seed: of all random streams except for those of the scenario.
            devices: where the server and the clients compute.
        """
        self.method, self.rounds = method, training.rounds
        graphs = training.compile == "cudagraphs"
        self._fast = "stacked" if training.stack > 1 else "replayed" if graphs else None  # kind of steps
        self.terms = Terms(
            rounds=training.rounds,
            clients=len(scenario.clients),
            fraction=training.fraction,
            epochs=training.epochs,
            batch_size=training.batch_size,
            classes=scenario.classes,
            expected_noise=scenario.expected_noise,
            iid=parse_partition(scenario.partition).iid,
            lr=training.lr,
        )
        model = self._build(training, dataset.train_x.shape[1], seed)
        images = {"train": dataset.train_x, "test": dataset.test_x}
        build = partial(
            build_worker,
            method=method,
            terms=self.terms,
            model=model,
            training=training,
            seed=seed,
            rows=tuple(scenario.clients),
            given=tuple(scenario.given[rows] for rows in scenario.clients),
            augmentation=dataset.augmentation,
            mean=dataset.mean,
            std=dataset.std,
            kind=GraphedWorker if graphs else StackedWorker if training.stack > 1 else ClientWorker,
        )
        self.device = devices.server
        configure_torch(self.device, training.precision)
        self.test_rows = _subset(len(dataset.test_y), training.test_samples)
        labels = dataset.test_y[self.test_rows]
        self.test_labels = torch.from_numpy(labels).to(self.device)
        self._of_class = [labels == label for label in range(scenario.classes)]  # rows of the test set
        sizes = tuple(len(rows) for rows in scenario.clients)
        initial = copy_weights(sent_weights(method, model))
        self.server = Server(self.terms, seed, placed(initial, self.device), sizes)
        take_work()
        # Before any process starts, because methods refuse unsuitable settings here.
        with seeded(seed_of(seed, "torch", "server state"), self.device):
            state = as_state(method.name, "server_state", method.server_state(self.server))
        self._state = TrackedState(method.name, state)
        self.server.state = self._state.root
        reads = take_work().reads
        self.executor: Executor = (
            ProcessPool(method, build, images, devices, training.stack)
            if devices.workers
            else build(self.device, images)
        )
        states = States(devices.state, CPU if devices.workers else self.device)
        if isinstance(self.executor, ClientWorker):
            self.executor.state_device = states.device
        self.federation = LocalFederation(
            method, self.server, self.executor, states, drop=training.drop, initial_reads=reads
        )
        if training.stack > 1:  # clients of one size take the same number of steps
            self.federation.order = partial(sorted, key=lambda k: (sizes[k], k))
        self.changed: set[Path] = set()  # entries of the server's state, in the last round
        self._unsaved: set[Name] = set()  # parts of the state that changed since the last checkpoint

    def _build(self, training: Training, channels: int, seed: int) -> nn.Module:
        """Build the method's model; its initial weights are drawn on the CPU from their own stream."""

        def new_net() -> nn.Module:
            return make_network(
                training.model,
                channels=channels,
                classes=self.terms.classes,
                norm=training.norm,
                pretrained=training.pretrained,
            )

        # The stream does not depend on the method, so the first network of each starts with FedAvg's weights.
        with seeded(seed_of(seed, "initial weights"), CPU):
            model: nn.Module = self.method.build(new_net)
        parts = {name for name, _ in model.named_children()} - set(self.method.private)
        wrong = ", ".join(sorted(set(self.method.members) - parts))
        expect(not wrong, self.method.name, "members must name networks of build that are sent", wrong)
        return model

    @property
    def round(self) -> int:
        """Return the number of finished rounds."""
        return self.server.round

    def run_round(self) -> RoundReport:
        """Run one round: the method's exchange with its clients, then the test."""
        start = time.perf_counter()
        number = self.server.round
        self.federation.begin_round()
        method, names = self.method.name, set(self.server.weights)
        with seeded(seed_of(self.server.seed, "torch", "round", number), self.device):
            numbers = as_numbers(method, self.method.round(self.server, self.federation))
        check_weights(method, self.server.weights, names)
        self.server.weights = placed(self.server.weights, self.device)
        self.changed = self._state.settle(self.server.state)
        self.server.state = self._state.root
        self._unsaved |= {("server", *path) for path in self.changed if path[-1] is not KEYS}
        self._unsaved |= {("client", k) for k in self.federation.seen}
        # One copy to the host for all numbers, because every copy waits for the device.
        score, *of_members = to_cpu([self._score(member) for member in (None, *self.method.members)])
        members = {
            f"accuracy_{name}": 100.0 * scored["accuracy"].item()
            for name, scored in zip(self.method.members, of_members, strict=True)
        }
        self.server.round = number + 1  # last: the tests belong to this round
        cost = self.federation.cost
        return RoundReport(
            round=number,
            accuracy=100.0 * score["accuracy"].item(),
            loss=score["loss"].item(),
            class_accuracy=self._class_accuracy(score["right"].numpy()),
            train_loss=self.federation.train_loss,
            clients=tuple(sorted(self.federation.trained)),
            bytes_down=cost.bytes_down,
            bytes_up=cost.bytes_up,
            forward=cost.forward,
            backward=cost.backward,
            seconds=round(time.perf_counter() - start, 3),
            method={**numbers, **members},
            counts={**self.federation.counts, **self._steps()},
        )

    def _steps(self) -> dict[str, int]:
        """Return the number of steps, and of those that were stacked or replayed if the run asks for it."""
        return {name: self.federation.steps[name] for name in ("steps", self._fast)} if self._fast else {}

    # -- the global model ----------------------------------------------------------------------------
    def _score(self, member: str | None = None) -> dict[str, Tensor]:
        """Test the global model, or one network of it; accuracy is a share."""
        logits = self.executor.logits(self.server.weights, "test", self.test_rows, member)
        right = logits.argmax(1) == self.test_labels
        loss = F.cross_entropy(logits, self.test_labels)
        return {"right": right, "accuracy": right.float().mean(), "loss": loss}

    def _class_accuracy(self, right: np.ndarray) -> tuple[float | None, ...]:
        """Return the test accuracy of each class in percent; None for a class without test images."""
        return tuple(100.0 * float(right[rows].mean()) if rows.any() else None for rows in self._of_class)

    def predict_train(self, rows: np.ndarray) -> np.ndarray:
        """Return the classes that the global model predicts for some training images."""
        return self.executor.logits(self.server.weights, "train", rows).argmax(1).cpu().numpy()

    @property
    def states_on_host(self) -> Mapping[int, State]:
        """Return the states of the clients with their tensors on the CPU, as the server's state."""
        return OnHost(self.federation.states)

    # -- checkpoints ---------------------------------------------------------------------------------
    def parts(self) -> dict[Name, Any]:
        """Return all parts of the state to resume from, by name."""
        self._unsaved = {("server", *path) for path in self._state.paths()}
        self._unsaved |= {("client", k) for k in self.federation.states}
        return self.changes()

    def changes(self) -> dict[Name, Any]:
        """Return the parts that changed since the last call, or None for a part that is gone."""
        parts: dict[Name, Any] = {("engine",): {"round": self.server.round, "weights": self.server.weights}}
        for kind, *path in self._unsaved:
            entry = self.federation.states[path[0]] if kind == "client" else self._state.entry(tuple(path))
            parts[kind, *path] = entry
        self._unsaved = set()
        return parts

    def restore(self, parts: Mapping[Name, Any]) -> None:
        """Resume from parts that were saved; numbers stay the same."""
        engine = parts["engine",]
        self.server.round = engine["round"]
        self.server.weights = placed(engine["weights"], self.device)
        self._state.restore({name[1:]: part for name, part in parts.items() if name[0] == "server"})
        self.server.state = self._state.root
        self.federation.states.update({name[1]: part for name, part in parts.items() if name[0] == "client"})
        self._unsaved = set()

    def close(self) -> None:
        """End the worker processes."""
        self.executor.close()


def _subset(size: int, count: int | None) -> np.ndarray:
    """Return the rows to test on: all, or a random subset that is the same for every run."""
    if count is None or count >= size:
        return np.arange(size)
    # Seed 0 for all runs: accuracies of different seeds are compared, so they need the same images.
    return np.sort(stream(0, "test subset").choice(size, count, replace=False))
