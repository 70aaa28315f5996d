"""Clients that train together: one pass through the networks of several clients, with fewer kernels.

Convolutions of n clients are one convolution with n groups. All else is the code of the reference executor,
client by client: hooks, losses, optimiser, messages. So every method can run here. Joined are the passes over
whole views of a batch, for clients with batches of one size, from their second step on: the first one shows
which passes the loss has.

The numbers are those of the reference executor except for rounding, because a grouped convolution adds up in
another order.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.api import Weights
from flnl_bench.engine.client import Call, ClientWorker, Reply, backward, networks_of
from flnl_bench.engine.devices import MEMORY_FORMAT, generator_states, seeded, sent
from flnl_bench.engine.ledger import take_work
from flnl_bench.models.networks import BatchNorm, Network
from flnl_bench.random_streams import seed_of

Members = Sequence[Any]  # the same module in the networks of several clients
Passes = tuple[tuple[int, int], ...]  # of one step: number of the network, number of the view
TOLERANCE = 1e-3  # of the trial of a network, in float32


class CannotStack(RuntimeError):
    """Clients do something that cannot be done for several of them together."""


# -- layers over clients: inputs and outputs are [B, n·C, …], the channels of one client after the other ---
def _joined(members: Members, name: str) -> Tensor | None:
    """Return a tensor of all members, joined along its first dimension."""
    tensors = [getattr(member, name) for member in members]
    return None if tensors[0] is None else torch.cat(tensors)


def _convolve(members: Members, x: Tensor) -> Tensor:
    one, weight, bias = members[0], _joined(members, "weight"), _joined(members, "bias")
    assert weight is not None
    return F.conv2d(x, weight, bias, one.stride, one.padding, one.dilation, len(members) * one.groups)


def _by_client(x: Tensor, count: int) -> Tensor:
    y: Tensor = x.unflatten(1, (count, -1)).transpose(0, 1)  # [B, n·D] → [n, B, D]
    return y


def _multiply_by_client(members: Members, x: Tensor) -> Tensor:
    weight = torch.stack([member.weight for member in members]).transpose(1, 2)  # [n, I, O]
    if members[0].bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(torch.stack([member.bias for member in members]).unsqueeze(1), x, weight)


def _multiply(members: Members, x: Tensor) -> Tensor:
    return _multiply_by_client(members, _by_client(x, len(members))).transpose(0, 1).flatten(1)


def _normalise_batch(members: Members, x: Tensor) -> Tensor:
    one, weight, bias = members[0], _joined(members, "weight"), _joined(members, "bias")
    mean, var = _joined(members, "running_mean"), _joined(members, "running_var")
    single = isinstance(one, BatchNorm) and x.numel() == x.shape[1]  # has no variance
    trains = one.training and not single
    y = F.batch_norm(x, mean, var, weight, bias, trains or mean is None, one.momentum, one.eps)
    if trains and mean is not None and var is not None:
        kept = [getattr(member, name) for name in ("running_mean", "running_var") for member in members]
        torch._foreach_copy_(kept, [*mean.chunk(len(members)), *var.chunk(len(members))])
    return y


def _normalise_groups(members: Members, x: Tensor) -> Tensor:
    one, weight, bias = members[0], _joined(members, "weight"), _joined(members, "bias")
    return F.group_norm(x, len(members) * one.num_groups, weight, bias, one.eps)


def _apply_to_images(members: Members, x: Tensor) -> Tensor:
    y = members[0](x.unflatten(1, (len(members), -1)).flatten(0, 1))  # [B·n, C, …]
    joined: Tensor = y.unflatten(0, (-1, len(members))).flatten(1, 2)
    return joined


LAYERS: dict[type[nn.Module], Callable[[Members, Tensor], Tensor]] = {
    nn.Conv2d: _convolve,
    nn.Linear: _multiply,
    BatchNorm: _normalise_batch,
    nn.BatchNorm1d: _normalise_batch,
    nn.BatchNorm2d: _normalise_batch,
    nn.GroupNorm: _normalise_groups,
}
# Modules that treat all channels alike, and so can take those of several clients.
ALIKE = (nn.Identity, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)


class Layer(nn.Module):
    """A layer of several clients."""

    def __init__(self, members: Members, chosen: list[int]) -> None:
        super().__init__()
        kind, weights = type(members[0]), [*members[0].parameters(), *members[0].buffers()]
        if kind not in LAYERS and weights:
            raise CannotStack(f"{kind.__name__} is no layer that can be stacked")
        self.join = LAYERS.get(kind, _apply_to_images)
        self.members, self.chosen = members, chosen

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for the inputs of the chosen clients."""
        y: Tensor = self.join([self.members[k] for k in self.chosen], x)
        return y


def stack_modules(members: Members, chosen: list[int]) -> nn.Module:
    """Return a module that computes what these modules of the chosen clients compute."""
    one: nn.Module = members[0]
    if type(one) in ALIKE:
        return one
    names = [name for name, _ in one.named_children()]
    if not names:
        return Layer(members, chosen)
    if [*one.parameters(recurse=False), *one.buffers(recurse=False)]:
        raise CannotStack(f"{type(one).__name__} has weights next to its layers")
    twin = copy.copy(one)  # shares everything except for the table of its children
    twin._modules = {
        name: stack_modules([member.get_submodule(name) for member in members], chosen) for name in names
    }
    return twin


class Stack:
    """The networks of several clients as one network."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.compute, self.heads = networks[0].compute, [network.head for network in networks]
        if type(self.heads[0]) is not nn.Linear:
            raise CannotStack(f"{type(self.heads[0]).__name__} is no head that can be stacked")
        self.chosen: list[int] = []
        self.backbone = stack_modules([network.backbone for network in networks], self.chosen)

    def outputs(self, clients: Sequence[int], images: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return features and logits of a batch of each of some clients; all batches have the same size."""
        self.chosen[:] = clients
        x = torch.cat(list(images), 1).contiguous(memory_format=MEMORY_FORMAT)
        features = _by_client(self.compute(self.backbone, x), len(clients))  # [n, B, D]
        head = partial(_multiply_by_client, [self.heads[k] for k in clients])
        return list(zip(features, self.compute(head, features), strict=True))


@torch.no_grad()
def can_stack(network: Network, image_shape: Sequence[int], device: torch.device) -> bool:
    """Compare a step of two such networks with that of their stack."""
    # Code of a plugin may do with channels what is right for one client only.
    with seeded(0, device):
        pair = [copy.deepcopy(network).train() for _ in range(2)]
        for parameter in [*pair[0].parameters(), *pair[1].parameters()]:
            parameter.add_(0.1 * torch.randn_like(parameter))
        images = [torch.randn(4, *image_shape, device=device) for _ in pair]
        alone = copy.deepcopy(pair)
        expected = [twin.both(x) for twin, x in zip(alone, images, strict=True)]
        try:
            outputs = Stack(pair).outputs([0, 1], images)
            seen = outputs, [twin.state_dict() for twin in pair]
            wanted = expected, [twin.state_dict() for twin in alone]
            torch.testing.assert_close(seen, wanted, rtol=TOLERANCE, atol=TOLERANCE)
        except Exception:  # whatever the code of the plugin raises
            return False
    return True


# -- clients -----------------------------------------------------------------------------------------
class Lane:
    """A client of a group: its worker, its next batch, and the outputs that were computed for it."""

    batch: Any  # of the next step; None: the training has ended
    reply: Reply

    def __init__(self, number: int, worker: ClientWorker) -> None:
        self.number, self.worker = number, worker
        self.networks = networks_of(worker.model)
        self._backbones = {id(network.backbone): i for i, network in enumerate(self.networks)}
        for network in self.networks:
            network.ahead = self._ready_output

    def start(self, weights: Weights, call: Call) -> None:
        """Start a training, up to its first step."""
        self._stages, self._stacked = self.worker.stages(weights, call), 0
        self.passes: Passes | None = None  # of the step before; None: unknown, or not only over whole views
        self.advance()

    def advance(self) -> None:
        """Finish a step, and run up to the next one."""
        self._ready: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._asked: list[tuple[int, int | None]] = []
        try:
            self.batch = next(self._stages)
        except StopIteration as end:
            self.batch, self.reply = None, replace(end.value, stacked=self._stacked)

    def view(self, number: int) -> Tensor:
        """Return a view of the batch."""
        view: Tensor = self.batch.views[number]
        return view

    def prepare(self, number: int, x: Tensor, features: Tensor, logits: Tensor) -> None:
        """Have the outputs of a network for a view ready."""
        network = self.networks[number]
        # The input is kept, so that no other tensor gets its id.
        self._ready[id(network.backbone), id(x)] = x, features
        self._ready[id(network.head), id(features)] = features, logits

    def _ready_output(self, part: nn.Module, x: Tensor) -> Tensor | None:
        number = self._backbones.get(id(part))
        if number is not None:
            views = self.batch.views if self.batch and part.training and torch.is_grad_enabled() else ()
            self._asked.append((number, next((i for i, view in enumerate(views) if view is x), None)))
        _, output = self._ready.pop((id(part), id(x)), (None, None))
        return output

    def losses(self) -> Tensor:
        """Compute the losses of this step, and note its passes."""
        joined = bool(self._ready)
        self._asked = []
        losses = next(self._stages)
        assert isinstance(losses, Tensor)
        passes = tuple((number, view) for number, view in self._asked if view is not None)
        whole = len({*passes}) == len(self._asked)
        if joined and not (whole and passes == self.passes):
            raise CannotStack("the loss has other passes than in the step before")
        self.passes = passes if whole else None
        self._stacked += joined
        return losses


class StackedWorker(ClientWorker):
    """Trains the clients of a group together: all take a step, then all take the next one."""

    def __post_init__(self) -> None:
        """Build a reference worker for each client of a group, next to this one, which visits and tests."""
        super().__post_init__()
        own = (self.method, self.terms, self.images, self.training)
        most = min(self.training.stack, self.terms.clients)
        workers = [ClientWorker(*own, copy.deepcopy(self.model), self.seed) for _ in range(most)]
        self.lanes = [Lane(number, worker) for number, worker in enumerate(workers)]
        networks = [lane.networks for lane in self.lanes]
        fits = all(can_stack(network, self.images.shape, self.device) for network in networks[0])
        self.stacks = [Stack(same) for same in zip(*networks, strict=True)] if fits else []

    def train_group(self, weights: Weights, calls: Sequence[Call]) -> list[Reply]:
        """Train clients together, or one after the other where their numbers could differ."""
        if not self.stacks or len(calls) == 1:
            return super().train_group(weights, calls)
        work = take_work()
        # Copies, because hooks write to states, and the group may have to start again.
        copies = [replace(call, state=call.state and sent(call.state, self.device)) for call in calls]
        try:
            with seeded(seed_of(self.seed, "torch", "stack"), self.device):
                before = generator_states(self.device)
                replies = self._train_together(weights, copies)
                if not torch.equal(before, generator_states(self.device)):
                    raise CannotStack("hooks draw from torch's own generator: each client has one of its own")
        except RuntimeError:  # also of torch, if a loss writes to its logits; a method's mistake comes again
            take_work()
            replies = super().train_group(weights, calls)
        replies[0].cost.add(work)
        return replies

    def _train_together(self, weights: Weights, calls: Sequence[Call]) -> list[Reply]:
        lanes = self.lanes[: len(calls)]
        for lane, call in zip(lanes, calls, strict=True):
            lane.worker.state_device = self.state_device
            lane.start(weights, call)
        while active := [lane for lane in lanes if lane.batch]:
            self._join_passes(active)
            backward([lane.losses() for lane in active])
            for lane in active:
                lane.advance()
        return [lane.reply for lane in lanes]

    def _join_passes(self, active: Sequence[Lane]) -> None:
        """Compute the passes of this step for all clients that have the same passes and batch size."""
        alike: dict[Any, list[Lane]] = defaultdict(list)
        for lane in active:
            alike[lane.passes, lane.view(0).shape].append(lane)
        for (passes, _), lanes in alike.items():
            if not passes or len(lanes) == 1:
                continue
            for number, view in passes:
                images = [lane.view(view) for lane in lanes]
                outputs = self.stacks[number].outputs([lane.number for lane in lanes], images)
                for lane, x, both in zip(lanes, images, outputs, strict=True):
                    lane.prepare(number, x, *both)
