"""CUDA graphs of training steps: all kernels of a step are recorded once, and then started together.

A GPU computes the kernels of a small network faster than Python starts them. A graph repeats kernels on the
same memory, without Python. So a step is repeated only where Python would do the same again: its batch has
the same shapes and notes, and nothing that code can see was replaced, by a step or between two steps. All
other steps are those of the reference executor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flnl_bench.api import Batch, Weights
from flnl_bench.engine.client import Call, ClientWorker, LocalRun, Stages, completed
from flnl_bench.engine.ledger import Cost
from flnl_bench.errors import BrokenContract

CONSTANTS = (str, bytes, bool, int, float, type(None))
Replay = Callable[[], None]


class GraphRecorder:
    """Records kernels as CUDA graphs, which share the memory of their intermediate results."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._stream = device, torch.cuda.Stream(device)
        self._kept = self._graph(
            lambda: torch.zeros(1, device=device), None
        )  # the memory goes with the last graph

    def __call__(self, step: Callable[[], object]) -> Replay:
        """Record the kernels of a step, which do not run yet; return a function that runs them."""
        replay: Replay = self._graph(step, self._kept.pool()).replay
        return replay

    def _graph(self, step: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
        # Not by torch.cuda.graph, which empties the allocator's cache each time.
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool, capture_error_mode="thread_local")  # other threads may use the GPU
            try:
                step()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return graph


@dataclass
class Repeatable:
    """A kind of step that replaced nothing, and how to repeat it."""

    seen: list[Any]  # what code could see before it
    batch: Batch | None = None  # the memory that a replay reads
    replay: Replay | None = None  # None: not recorded yet
    cost: Cost = field(default_factory=Cost)


class GraphedWorker(ClientWorker):
    """Trains like the reference executor, and repeats steps as graphs where it can."""

    def __post_init__(self) -> None:
        """Prepare the recording."""
        super().__post_init__()
        self._record: Callable[[Callable[[], object]], Replay] | None = GraphRecorder(self.device)
        self._modules, self._parameters = list(self.model.modules()), list(self.model.parameters())
        self._bound = 0

    def stages(self, weights: Weights, call: Call) -> Stages:
        """Train a client; its graphs end with it, because they use its memory."""
        self._kinds: dict[Any, Repeatable | None] = {}
        reply = yield from super().stages(weights, call)
        self._kinds = {}
        return reply

    def step(self, run: LocalRun, batch: Batch) -> Generator[Batch | Tensor, None, None]:
        """Take one step of the optimiser; the second of a kind that replaces nothing is recorded."""
        kind, seen = _kind(batch), self._seen(run)
        known = self._kinds.get(kind)
        if known and _same(known.seen, seen) and (known.replay or self._recorded(known, run, batch)):
            assert known.batch
            assert known.replay
            for mine, other in zip(_tensors(known.batch), _tensors(batch), strict=True):
                mine.copy_(other)
            known.replay()
            self.cost.add(known.cost)
            run.replayed += 1
            return
        yield from super().step(run, batch)
        self._kinds[kind] = Repeatable(seen) if _same(seen, self._seen(run)) else None

    def _recorded(self, known: Repeatable, run: LocalRun, batch: Batch) -> bool:
        """Record a step; return whether that was possible."""
        if self._record is None:
            return False
        notes = {name: v.clone() if isinstance(v, Tensor) else v for name, v in batch.note.items()}
        own = Batch(tuple(view.clone() for view in batch.views), batch.y.clone(), batch.index.clone(), notes)
        forward, backward = self.cost.forward, self.cost.backward
        try:
            known.replay = self._record(lambda: completed(ClientWorker.step(self, run, own)))
        except RuntimeError:  # the step waits for the device; a mistake of the method comes again
            self._record = None
            return False
        finally:
            known.cost = Cost(forward=self.cost.forward - forward, backward=self.cost.backward - backward)
            self.cost.forward, self.cost.backward = forward, backward
        if not _same(known.seen, self._seen(run)):
            raise BrokenContract(
                f"{self.method.name}: one step replaces what the step before kept: use --compile off"
            )
        known.batch = own
        return True

    def _bind(self, weights: Weights) -> nn.Module:
        self._bound += 1
        return super()._bind(weights)

    def _seen(self, run: LocalRun) -> list[Any]:
        """Return everything that a step could replace, and on which its code could depend."""
        client = run.client
        draws = [client.rng.bit_generator.state, client.batch_rng.bit_generator.state]
        modes = [module.training for module in self._modules]
        trained = [parameter.requires_grad for parameter in self._parameters]
        own = [client.y, client.scratch, client.state]
        return list(_leaves([own, draws, run.optimiser.momenta, modes, trained, self._bound]))


def _tensors(batch: Batch) -> list[Tensor]:
    return [*batch.views, batch.y, batch.index, *(v for v in batch.note.values() if isinstance(v, Tensor))]


def _kind(batch: Batch) -> tuple[Any, ...]:
    """Return what the code of a step depends on in a batch."""
    shapes = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in _tensors(batch))
    return shapes, tuple(None if isinstance(leaf, Tensor) else leaf for leaf in _leaves(batch.note))


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the parts of a tree; an own object, equal to nothing, for what may change without a trace."""
    if isinstance(tree, (*CONSTANTS, Tensor, nn.Module)):
        yield tree
    elif isinstance(tree, np.ndarray):
        yield tree.tobytes()
    elif isinstance(tree, Mapping | list | tuple):
        yield len(tree)
        for part in tree.items() if isinstance(tree, Mapping) else tree:
            yield from _leaves(part)
    else:
        yield object()


def _same(some: list[Any], others: list[Any]) -> bool:
    """Return whether leaves are the same tensors and equal constants."""
    return len(some) == len(others) and all(
        a is b or (isinstance(a, CONSTANTS) and type(a) is type(b) and a == b)
        for a, b in zip(some, others, strict=True)
    )
