"""CUDA graphs of training steps: all kernels of a step are recorded once, and then started together.

A GPU computes the kernels of a small network faster than Python starts them. A graph repeats kernels on the
same memory, without Python. So a step is repeated only where Python would do the same again: its batch has
the same shapes and notes, it belongs to the same portion, and neither the step before nor code between them
has replaced a tensor or value of the client or the model, or drawn a random number. All other steps are those
of the reference executor. What a hook keeps elsewhere (a global variable, an object of its own) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flnl_bench.api import Batch, Weights
from flnl_bench.engine.client import Call, ClientWorker, LocalRun, Stages, completed
from flnl_bench.engine.ledger import Cost, take_work
from flnl_bench.errors import BrokenContract, one_line

CONSTANTS = (str, bytes, bool, int, float, type(None))
MOST_KINDS = 16  # of a client's steps; each keeps a batch on the device
Replay = Callable[[], None]


class GraphRecorder:
    """Records kernels as CUDA graphs, which share the memory of their intermediate results."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._stream = device, torch.cuda.Stream(device)
        with self.active():  # this graph is kept, because their memory goes with the last one
            self._kept = self._graph(lambda: torch.zeros(1, device=device), None)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Start all kernels on a stream that can be recorded."""
        usual = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)

    def __call__(self, step: Callable[[], object]) -> Replay:
        """Record the kernels of a step, which do not run yet; return a function that runs them."""
        replay: Replay = self._graph(step, self._kept.pool()).replay
        return replay

    def _graph(self, step: Callable[[], object], pool: Any) -> torch.cuda.CUDAGraph:
        # Not by torch.cuda.graph, which empties the allocator's cache each time.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool, capture_error_mode="thread_local")  # other threads may use the GPU
        try:
            step()
        finally:
            graph.capture_end()
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
        self._recorder = GraphRecorder(self.device)
        self._modules = list(self.model.modules())
        self._bound = 0

    def stages(self, weights: Weights, call: Call) -> Stages:
        """Train a client; its graphs end with it, because they use its memory."""
        self._kinds: dict[Any, Repeatable | None] = {}
        with self._recorder.active():
            reply = yield from super().stages(weights, call)
        self._kinds = {}
        return reply

    def step(self, run: LocalRun, batch: Batch) -> Generator[Batch | Tensor, None, None]:
        """Take one step of the optimiser; the second of a kind that replaces nothing is recorded."""
        kind, seen = _kind(batch), self._seen(run)
        known = self._kinds.get(kind)
        if known and _same(known.seen, seen):
            if known.replay is None:
                self._record(known, run, batch)
            assert known.batch
            assert known.replay
            for mine, other in zip(_tensors(known.batch), _tensors(batch), strict=True):
                mine.copy_(other)
            known.replay()
            self.cost.add(known.cost)
            run.replayed += 1
            return
        yield from super().step(run, batch)
        if len(self._kinds) == MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = Repeatable(seen) if _same(seen, self._seen(run)) else None

    def _record(self, known: Repeatable, run: LocalRun, batch: Batch) -> None:
        """Record a step with memory of its own for the batch."""
        notes = {name: v.clone() if isinstance(v, Tensor) else v for name, v in batch.note.items()}
        own = Batch(tuple(view.clone() for view in batch.views), batch.y.clone(), batch.index.clone(), notes)
        self.cost.add(take_work())
        forward, backward = self.cost.forward, self.cost.backward
        try:
            known.replay = self._recorder(lambda: completed(ClientWorker.step(self, run, own)))
        except RuntimeError as error:
            raise BrokenContract(
                f"{self.method.name}: a step cannot be a CUDA graph ({one_line(error)}): use --compile off"
            ) from error
        if not _same(known.seen, self._seen(run)):
            raise BrokenContract(
                f"{self.method.name}: a step replaces what the step before kept: use --compile off"
            )
        known.batch, known.cost = own, take_work()
        known.cost.add(Cost(forward=self.cost.forward - forward, backward=self.cost.backward - backward))
        self.cost.forward, self.cost.backward = forward, backward

    def _bind(self, weights: Weights) -> nn.Module:
        self._bound += 1
        return super()._bind(weights)

    def _seen(self, run: LocalRun) -> list[Any]:
        """Return what a step could replace and what its code could depend on, as far as it can be seen."""
        client, modes = run.client, [module.training for module in self._modules]
        draws = [client.rng, client.batch_rng]
        random = [torch.default_generator.get_state(), *(rng.bit_generator.state for rng in draws)]
        weights = [(t, t.requires_grad) for t in (*self.model.parameters(), *self.model.buffers())]
        own = [client.y, client.scratch, client.state, client.inbox, _attributes(self.model)]
        seen = [run.portion, self._bound, modes, weights, run.optimiser.momenta, random, own]
        return list(_leaves(seen))


def _tensors(batch: Batch) -> list[Tensor]:
    return [*batch.views, batch.y, batch.index, *(v for v in batch.note.values() if isinstance(v, Tensor))]


def _kind(batch: Batch) -> tuple[Any, ...]:
    """Return what the code of a step depends on in a batch."""
    shapes = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in _tensors(batch))
    notes = [(name, None if isinstance(value, Tensor) else value) for name, value in batch.note.items()]
    return shapes, tuple((type(leaf), leaf) for leaf in _leaves(notes))


def _attributes(model: nn.Module) -> list[Any]:
    """Return what a method has set on its model, besides modules and weights."""
    return [value for value in vars(model).values() if isinstance(value, (*CONSTANTS, Tensor))]


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the parts of a tree; an own object, equal to nothing, for what may change without a trace."""
    if isinstance(tree, Tensor) and tree.is_cuda:
        yield from (tree, tree.data_ptr())
    elif isinstance(tree, Tensor):
        # A graph does not change what the host has.
        yield tree.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(tree, (*CONSTANTS, nn.Module)):
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
