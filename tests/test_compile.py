"""torch.compile takes the step of every network and of every method's loss as one graph."""

import copy
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from flnl_bench.methods import default_methods
from flnl_bench.models import make_network
from flnl_bench.testing import run_rounds, toy_engine

METHODS = [
    pytest.param(name, marks=[] if name == "fedgr" else pytest.mark.slow)  # all together a minute
    for name in default_methods().methods
]


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["tiny-cnn", "resnet8", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_the_step_of_a_network_is_one_graph_with_the_same_gradients(name):
    torch.manual_seed(0)
    network = make_network(name, channels=3, classes=10).to(memory_format=torch.channels_last)
    twin, x, y = copy.deepcopy(network), torch.rand(4, 3, 16, 16), torch.arange(4)
    step = compiled(lambda x, y: F.cross_entropy(network(x), y))
    expected = gradients(twin, F.cross_entropy(twin(x), y))
    torch.testing.assert_close(gradients(network, step(x, y)), expected)


def last_loss(method):
    """The arguments of the last call of the method's loss in a short run, past any warm-up."""
    calls = []
    cls, loss = type(method), type(method).loss

    def spy(self, model, batch, client):
        calls[:] = [(model, batch, client)]
        return loss(self, model, batch, client)

    with patch.object(cls, "loss", spy):
        run_rounds(toy_engine(method))
    return calls[0]


def tensors_in(tree):
    if isinstance(tree, torch.Tensor):
        return [] if tree.requires_grad else [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for value in values for tensor in tensors_in(value)]


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_of_a_method_is_one_graph_with_the_same_gradients(name):
    method = default_methods().make(name, {}, {})
    model, batch, client = last_loss(method)
    model.train()
    # Both calls begin with the same weights and memories: some losses remember what they saw.
    weights, scratch, state = copy.deepcopy(model.state_dict()), dict(client.scratch), dict(client.state)
    kept = [(tensor, tensor.clone()) for tensor in tensors_in([scratch, state])]
    expected = gradients(model, method.loss(model, batch, client).mean())
    model.load_state_dict(weights)
    client.scratch, client.state = scratch, state
    for tensor, value in kept:
        tensor.copy_(value)
    with torch._dynamo.config.patch(trace_autograd_ops=True):  # fedfixer's loss takes a gradient
        step = compiled(lambda: method.loss(model, batch, client).mean())
        torch.testing.assert_close(gradients(model, step()), expected)


@pytest.mark.slow
def test_a_compiled_run_gives_nearly_the_same_weights():
    torch._dynamo.reset()
    method = default_methods().make("fedavg", {}, {})
    compiled_run, plain = toy_engine(method, compile="default"), toy_engine(method)
    assert run_rounds(compiled_run, 1)[0]["forward"] == run_rounds(plain, 1)[0]["forward"]
    torch.testing.assert_close(compiled_run.server.weights, plain.server.weights, atol=1e-4, rtol=1e-3)
    assert compiled_run.executor.model.backbone._compiled_call_impl
