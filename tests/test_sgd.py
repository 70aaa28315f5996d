"""Local SGD is torch's, bit by bit."""

import copy

import pytest
import torch
from torch import nn

from flnl_bench.engine.sgd import SGD


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))


def trained(model, optimiser, steps=5):
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimiser.zero_grad()
        x = torch.randn(8, 1, 8, 8, generator=draws)
        model(x).square().mean().backward()
        optimiser.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_every_bit_is_that_of_torch(momentum, weight_decay):
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    ours, theirs = network(), network()
    mine = trained(ours, SGD(ours.named_parameters(), **settings))
    expected = trained(theirs, torch.optim.SGD(theirs.parameters(), **settings, fused=True))
    assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))
    start = list(network().parameters())
    assert not any(torch.equal(a, b) for a, b in zip(mine, start, strict=True) if a.dim() > 1)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_parameter_without_a_gradient_is_not_even_decayed(momentum):
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimiser = SGD({"unused": unused, "used": used}.items(), 0.1, momentum, 0.5)
    for _ in range(2):
        optimiser.zero_grad()
        used.sum().backward()
        optimiser.step()
    assert unused.tolist() == [1.0, 1.0]
    assert (used < 1.0).all()


def test_momentum_waits_while_a_parameter_has_no_gradient():
    # v = 1, then no gradient, then v = 0.5·1 + 1: w = 0 − 0.1·1 − 0.1·1.5.
    w = nn.Parameter(torch.zeros(1))
    optimiser = SGD([("w", w)], 0.1, 0.5)
    for gradient in (1.0, None, 1.0):
        w.grad = None if gradient is None else torch.full((1,), gradient)
        optimiser.step()
    assert w.item() == pytest.approx(-0.25)


def test_nothing_to_train_is_no_error():
    SGD([("w", nn.Parameter(torch.zeros(1)))], 0.1, 0.5).step()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_part_that_is_held_keeps_its_weights_and_its_velocity(momentum):
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})
    alone = copy.deepcopy(model)
    optimisers = [SGD(net.named_parameters(), 0.1, momentum, 0.5) for net in (model, alone)]
    for flag in (False, True, False):
        for net, optimiser in zip((model, alone), optimisers, strict=True):
            optimiser.zero_grad()
            sum(part.weight.square().sum() for part in net.values()).backward()
            held = {"a": torch.tensor(flag), "b": torch.tensor(False)} if net is model else None
            if not (net is alone and flag):
                optimiser.step(held)
        if flag:
            assert torch.equal(model["a"].weight, alone["a"].weight)
            assert not torch.equal(model["b"].weight, alone["b"].weight)
    assert torch.equal(model["a"].weight, alone["a"].weight)
