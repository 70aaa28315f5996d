"""The networks: their sizes, what they give, and what they count."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from flnl_bench.engine.ledger import Cost
from flnl_bench.errors import BadInput, MissingData
from flnl_bench.models import MODELS, make_network
from flnl_bench.models.networks import BatchNorm

SMALL = [name for name in MODELS if name != "resnet50"]


def make(name="tiny-cnn", channels=1, classes=10, **options):
    return make_network(name, channels=channels, classes=classes, **options)


def metered(**options):
    network = make(**options)
    network.meter = Cost()
    return network


# resnet20: 0.27 M in table 6 of He et al. (2016), the exact count with shortcut A; resnet18 and
# resnet34: the counts of the ImageNet networks less their 7×7 stem and 1,000-class head.
@pytest.mark.parametrize(
    ("name", "classes", "weights"),
    [
        ("tiny-cnn", 10, 94_762),
        ("tiny-cnn-16", 10, 24_346),
        ("tiny-cnn-16-quarter", 10, 25_114),
        ("resnet8", 10, 75_290),
        ("resnet8-wide-half", 10, 308_650),
        ("resnet20", 10, 269_722),
        ("resnet18", 10, 11_173_962),
        ("resnet18-projection", 10, 11_173_962 + 512 * 512 + 2 * 512),
        ("resnet34", 100, 21_328_292),
        ("resnet50", 14, 23_536_718),
    ],
)
def test_each_network_has_the_size_of_its_name(name, classes, weights):
    network = make(name, channels=3, classes=classes)
    assert sum(p.numel() for p in network.parameters()) == weights


@pytest.mark.parametrize("size", [28, 32])
def test_the_quarter_network_makes_small_images_of_larger_ones_and_sees_every_pixel(size):
    network = make("tiny-cnn-16-quarter")
    layers = network.backbone.layers
    assert layers[0](torch.zeros(1, 1, size, size)).shape[2:] == (size // 4, size // 4)
    small = make("tiny-cnn-16").backbone.layers(torch.zeros(1, 1, 8, 8))
    assert layers(torch.zeros(1, 1, size, size)).shape == small.shape
    image = torch.zeros(1, 1, size, size, requires_grad=True)
    layers[0](image).sum().backward()
    assert (image.grad != 0).all()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_projected_network_has_features_of_either_sign_and_a_head_that_sees_the_positive_ones(norm):
    network = make("resnet18-projection", channels=3, norm=norm)
    features, logits = network.both(torch.rand(4, 3, 8, 8))
    assert (features < 0).any()
    plain = torch.nn.functional.linear(features.clamp_min(0), network.head.weight, network.head.bias)
    assert torch.equal(logits, plain)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", SMALL)
def test_a_network_gives_features_and_the_logits_of_these_features(name, norm):
    network = make(name, channels=3, norm=norm).eval()
    x = torch.rand(2, 3, 16, 16)
    features, logits = network.both(x)
    assert features.shape == (2, network.feature_size)
    assert logits.shape == (2, 10)
    assert torch.equal(network(x), logits)
    assert torch.equal(network.head(network.features(x)), logits)


def test_resnet50_gives_the_features_before_its_head():
    network = make("resnet50", channels=1, classes=14).eval()
    features, logits = network.both(torch.rand(1, 1, 64, 64))
    assert features.shape == (1, 2048)
    assert logits.shape == (1, 14)


@pytest.mark.parametrize("size", [8, 28, 29])
def test_tiny_cnn_takes_images_of_any_size(size):
    assert make()(torch.rand(3, 1, size, size)).shape == (3, 10)


@pytest.mark.parametrize("name", list(MODELS))
def test_group_norm_leaves_no_batch_norm_behind(name):
    kinds = {type(m) for m in make(name, channels=3, norm="group").modules()}
    assert nn.GroupNorm in kinds
    assert not any("BatchNorm" in kind.__name__ for kind in kinds)


@pytest.mark.parametrize("name", ["tiny-cnn-16-quarter", "resnet18-projection"])
def test_a_network_trains_on_a_single_image_whose_last_map_has_one_position(name):
    network = make(name)
    network(torch.rand(1, 1, 8, 8)).sum().backward()
    assert all(torch.isfinite(weights.grad).all() for weights in network.parameters())


def test_batch_norm_gives_the_numbers_of_torch():
    x, ours, theirs = torch.rand(3, 4, 2, 2), BatchNorm(4), nn.BatchNorm2d(4)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.running_var, theirs.running_var)


def test_with_group_norm_an_image_does_not_see_its_batch():
    network, x = make(norm="group"), torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(network(x)[:1], network(x[:1]))


def test_the_same_seed_gives_the_same_weights():
    first, second, other = (_seeded(seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)


def _seeded(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make("resnet8")


@pytest.mark.parametrize("name", SMALL)
def test_signals_keep_their_scale_at_the_start(name):
    features = make(name, channels=3).features(torch.randn(8, 3, 16, 16))
    assert 0.05 < features.std() < 20


def test_training_counts_forward_and_backward():
    network = metered()
    network(torch.rand(5, 1, 8, 8))
    network.both(torch.rand(3, 1, 8, 8))
    assert (network.meter.forward, network.meter.backward) == (8, 8)


def test_no_backward_is_counted_without_gradients():
    network = metered()
    with torch.no_grad():
        network(torch.rand(5, 1, 8, 8))
    network.requires_grad_(False)
    network(torch.rand(5, 1, 8, 8))
    assert (network.meter.forward, network.meter.backward) == (10, 0)


def test_the_head_alone_costs_nothing():
    network = metered()
    network.head(torch.rand(5, network.feature_size))
    assert network.meter == Cost()


def test_a_copy_has_its_own_weights_and_the_same_meter():
    network = metered()
    twin = copy.deepcopy(nn.ModuleDict({"a": network}))["a"]
    twin(torch.rand(5, 1, 8, 8))
    assert network.meter.forward == 5
    with torch.no_grad():
        twin.head.weight.zero_()
    assert network.head.weight.any()


@pytest.mark.parametrize("name", list(MODELS))
def test_a_network_can_be_copied_on_the_meta_device(name):
    twin = copy.deepcopy(make(name, channels=3).to("meta"))
    assert twin(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_a_step_compiles_as_one_graph_for_good():
    network, x = metered(), torch.rand(4, 1, 8, 8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        step = torch.compile(lambda x: network(x).logsumexp(1).mean(), fullgraph=True, backend="aot_eager")
        for _ in range(3):
            step(x).backward()
    assert network.head.weight.grad is not None


def test_a_compiled_backbone_still_counts():
    network = metered()
    expected = copy.deepcopy(network)(torch.ones(4, 1, 8, 8))
    network.meter = Cost()
    network.backbone.compile(fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(network(torch.ones(4, 1, 8, 8)), expected)
    assert network.meter.forward == 4


def test_counting_never_waits_for_the_device(count_syncs):
    network = metered()
    assert count_syncs(lambda: network(torch.rand(4, 1, 8, 8))) == 0


@pytest.fixture
def count_syncs():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        syncs = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.syncs += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **kwargs or {})

    def count(call):
        with Counter() as counter:
            call()
        return counter.syncs

    return count


def test_an_unknown_model_is_answered_by_the_nearest():
    with pytest.raises(BadInput, match="did you mean 'resnet18'"):
        make("resnet-18")


def test_an_unknown_norm_is_refused():
    with pytest.raises(BadInput, match=r"unknown norm 'layer'.*allowed: batch, group"):
        make(norm="layer")


def test_only_resnet50_has_imagenet_weights():
    with pytest.raises(BadInput, match="resnet18 has no ImageNet weights"):
        make("resnet18", pretrained=True)
    with pytest.raises(BadInput, match="three channels"):
        make("resnet50", channels=1, pretrained=True)


def test_imagenet_weights_that_cannot_be_fetched_are_named(monkeypatch):
    from torchvision.models import ResNet50_Weights

    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(ResNet50_Weights, "get_state_dict", offline)
    with pytest.raises(MissingData, match=r"no route to host.*resnet50.*\.pth"):
        make("resnet50", channels=3, pretrained=True)


def test_the_names_are_known_without_torch():
    code = "import sys, flnl_bench.models as m; assert m.MODELS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
