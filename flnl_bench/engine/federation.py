"""The clients of a run: who is called, what is sent, what comes back, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flnl_bench.api import Client, Method, Server, State, Update, Weights
from flnl_bench.cost import Cost
from flnl_bench.engine.contract import as_clients
from flnl_bench.engine.local import Result, Task
from flnl_bench.engine.tree import count_bytes


class Labour(Protocol):
    """Who does the clients' work: a workbench in this process, or a crew of processes."""

    def work(self, weights: Weights, tasks: Iterable[Task]) -> Iterator[Result]:
        """The results of tasks that do not depend on each other, in their order."""


@dataclass
class LocalFederation:
    """All clients simulated on this machine, by a workbench or a crew of them."""

    method: Method
    server: Server
    labour: Labour
    states: dict[int, State] = field(default_factory=dict)
    order: Callable[[Sequence[int]], Sequence[int]] = sorted  # the order of work changes no number

    def __post_init__(self) -> None:
        self.begin_round()

    def begin_round(self) -> None:
        """Forget what the last round counted."""
        self.cost = Cost()
        self.trained: set[int] = set()
        self.calls: dict[tuple[str, int], int] = {}  # verb and client → calls in this round
        self.losses: list[tuple[float, int]] = []  # mean training loss, n_k

    def train(self, ids: Sequence[int], *, epochs: int | None = None) -> list[Update]:
        """Send the global weights and train the clients locally."""
        updates: list[Update] = []
        for k, result in self._call("train", ids, epochs=epochs):
            update: Update = result.answer
            self.trained.add(k)
            self.cost.bytes_up += count_bytes([update.weights, update.size, update.message])
            if result.loss is not None:
                self.losses.append((result.loss, update.size))
            updates.append(update)
        return sorted(updates, key=lambda update: update.client)

    def visit(self, ids: Sequence[int], task: Callable[[Client], Mapping[str, Any]]) -> dict[int, Mapping]:
        """Send the global weights, run `task` on each client; what it returns travels up."""
        answers: dict[int, Mapping] = {}
        for k, result in self._call("visit", ids, errand=task):
            answers[k] = result.answer
            self.cost.bytes_up += count_bytes(answers[k])
        return dict(sorted(answers.items()))

    @property
    def train_loss(self) -> float | None:
        """Mean training loss over the round's clients, weighted by n_k."""
        losses = sorted(self.losses)  # a sum of floats depends on its order
        total = sum(size for _, size in losses)
        return sum(loss * size for loss, size in losses) / total if total else None

    @property
    def seen(self) -> set[int]:
        """The clients that were called in this round."""
        return {k for _, k in self.calls}

    def _call(self, verb: str, ids: Sequence[int], **details: Any) -> Iterator[tuple[int, Result]]:
        """Results of one call of each client."""
        chosen = self.order(as_clients(self.method.name, verb, ids, self.server.terms.clients))
        tasks = (self._task(verb, k, **details) for k in chosen)
        for k, result in zip(chosen, self.labour.work(self.server.weights, tasks), strict=True):
            self.states[k] = result.state
            self.cost.add(result.cost)
            yield k, result

    def _task(self, verb: str, k: int, **details: Any) -> Task:
        inbox = self.method.inbox(self.server, k)
        self.cost.bytes_down += count_bytes([self.server.weights, inbox])
        before = self.calls.get((verb, k), 0)
        self.calls[verb, k] = before + 1
        # A visit must not move the batches of the training after it: they are the same for all methods.
        call = () if verb == "train" and not before else (verb, before)
        return Task(k, self.server.round, call, inbox, self.states.get(k), **details)
