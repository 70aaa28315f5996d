"""Builds networks by name."""

from __future__ import annotations

from torch import nn

from flnl_bench.errors import BadInput, MissingData, unknown
from flnl_bench.models import MODELS
from flnl_bench.models.layers import NORMS, initialise, normalisation
from flnl_bench.models.network import Network
from flnl_bench.models.resnet import ResNet, thin_resnet, wide_resnet
from flnl_bench.models.tiny import TinyCNN


def build_network(name: str, channels: int, classes: int, norm: str, pretrained: bool) -> Network:
    """The network called `name`; see `flnl_bench.models.make_network`."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if pretrained and name != "resnet50":
        raise BadInput(f"{name} has no ImageNet weights (only resnet50 has)")
    if name == "resnet50":
        return Network(_resnet50(channels, norm, pretrained), 2048, classes)
    backbone = _small_backbone(name, channels, norm)
    initialise(backbone)
    return Network(backbone, backbone.feature_size, classes)


def _small_backbone(name: str, channels: int, norm: str) -> TinyCNN | ResNet:
    if name in ("tiny-cnn", "tiny-cnn-16"):
        return TinyCNN(channels, norm, 32 if name == "tiny-cnn" else 16)
    if name in ("resnet18", "resnet34"):
        return wide_resnet({"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}[name], channels, norm)
    depth, stride = {"resnet8": (8, 1), "resnet8-half": (8, 2), "resnet20": (20, 1)}[name]
    return thin_resnet(depth, channels, norm, stride)


def _resnet50(channels: int, norm: str, pretrained: bool) -> nn.Module:
    """torchvision's ResNet-50 without its head."""
    if pretrained and (channels, norm) != (3, "batch"):
        raise BadInput("the ImageNet weights of resnet50 need three channels and the norm 'batch'")
    from torchvision.models import resnet50  # seconds to import, so only when asked for

    backbone = resnet50(norm_layer=lambda width: normalisation(norm, width))
    if channels != 3:
        backbone.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        initialise(backbone.conv1)
    if pretrained:
        backbone.load_state_dict(_imagenet_weights())
    backbone.fc = nn.Identity()
    return backbone


def _imagenet_weights() -> dict[str, object]:
    from torchvision.models import ResNet50_Weights

    weights = ResNet50_Weights.IMAGENET1K_V1
    try:
        return weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise MissingData(
            f"the ImageNet weights of resnet50 could not be fetched ({error}); "
            f"put {weights.url} into torch's cache folder (TORCH_HOME) or train without them"
        ) from None
