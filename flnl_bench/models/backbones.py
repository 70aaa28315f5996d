"""The backbones of the networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.errors import MissingData, unknown
from flnl_bench.models import NORMS

Module = TypeVar("Module", bound=nn.Module)


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size up to its stride; no bias, as a normalisation follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=(kernel - stride + 1) // 2, bias=False)


def normalisation(norm: str, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm with groups of at least four channels and at most 32 groups."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        most = max(1, min(32, channels // 4))
        return nn.GroupNorm(next(groups for groups in range(most, 0, -1) if channels % groups == 0), channels)
    raise unknown("norm", norm, NORMS)


def initialised(module: Module) -> Module:
    """The module with the weights of all convolutions drawn as He et al. (2015) do, by their fan-out."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return module


class TinyCNN(nn.Module):
    """Three convolutions, each with normalisation and ReLU, and the mean over all places.

    With a width of 16 it separates the losses of right and wrong labels so badly that no sieve works.
    """

    def __init__(self, channels: int, norm: str, width: int = 32, stride: int = 1) -> None:
        super().__init__()
        self.feature_size = 4 * width
        stem = max(3, stride + 1)  # sees every pixel
        layers: list[nn.Module] = []
        for layer in (
            convolution(channels, width, stem, stride),
            convolution(width, 2 * width, stride=2),
            convolution(2 * width, 4 * width, stride=2),
        ):
            layers += [layer, normalisation(norm, layer.out_channels), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The features [B, 4·width] of images of any size."""
        features: Tensor = self.layers(x).mean((2, 3))
        return features


class PaddedShortcut(nn.Module):
    """The identity where the block halves the size and adds channels, without weights."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Every `stride`-th pixel, with zero channels on both sides."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class Block(nn.Module):
    """Two 3×3 convolutions around which the input is led."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, projection: bool) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, stride=stride)
        self.first_norm = normalisation(norm, outputs)
        self.second = convolution(outputs, outputs)
        self.second_norm = normalisation(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = (
                nn.Sequential(convolution(inputs, outputs, 1, stride), normalisation(norm, outputs))
                if projection
                else PaddedShortcut(inputs, outputs, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The rectified sum of the two ways."""
        inner = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(self.second_norm(self.second(inner)).add_(self.shortcut(x)), inplace=True)


class ResNet(nn.Module):
    """A 3×3 stem, stages of residual blocks that halve the size, and the mean over all places."""

    def __init__(
        self,
        channels: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        norm: str,
        projection: bool,
        stride: int = 1,
    ) -> None:
        super().__init__()
        width = widths[0]
        self.stem = nn.Sequential(
            convolution(channels, width, stride=stride), normalisation(norm, width), nn.ReLU(inplace=True)
        )
        stages = []
        for number, (wide, count) in enumerate(zip(widths, blocks, strict=True)):
            for place in range(count):
                stride = 2 if number > 0 and place == 0 else 1
                stages.append(Block(width, wide, stride, norm, projection))
                width = wide
        self.blocks = nn.Sequential(*stages)
        self.feature_size = width

    def forward(self, x: Tensor) -> Tensor:
        """The features of images of any size."""
        features: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        return features


class RectifiedHead(nn.Linear):
    """A linear head that sees only what is positive of the features."""

    def forward(self, x: Tensor) -> Tensor:
        """The logits of features."""
        return super().forward(x.relu())


class Projected(nn.Module):
    """A backbone and a normalised linear layer, whose outputs, of either sign, are the features."""

    head_class = RectifiedHead

    def __init__(self, backbone: ResNet, norm: str) -> None:
        super().__init__()
        self.backbone, self.feature_size = backbone, backbone.feature_size
        self.linear = nn.Linear(self.feature_size, self.feature_size, bias=False)
        # BatchNorm of images would refuse features, which have no height and width.
        self.norm = (
            nn.BatchNorm1d(self.feature_size) if norm == "batch" else normalisation(norm, self.feature_size)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The features of images."""
        features: Tensor = self.norm(self.linear(self.backbone(x)))
        return features


def tiny_cnn(channels: int, norm: str, width: int = 32, stride: int = 1) -> TinyCNN:
    """The smallest network; `stride` is that of its first convolution."""
    return initialised(TinyCNN(channels, norm, width, stride))


def thin_resnet(depth: int, channels: int, norm: str, stride: int = 1) -> ResNet:
    """The network of 6n + 2 layers, n blocks a stage; `stride` is that of the stem."""
    blocks = [(depth - 2) // 6] * 3
    return initialised(ResNet(channels, (16, 32, 64), blocks, norm, projection=False, stride=stride))


def wide_resnet(blocks: Sequence[int], channels: int, norm: str) -> ResNet:
    """The network of 64 to 512 channels with these blocks a stage."""
    return initialised(ResNet(channels, (64, 128, 256, 512), blocks, norm, projection=True))


def projected_resnet18(channels: int, norm: str) -> Projected:
    """ResNet-18 with a normalised linear layer before its head, as in the authors' code of FedGR."""
    return Projected(wide_resnet((2, 2, 2, 2), channels, norm), norm)


def resnet50(channels: int, norm: str, weights: dict[str, object] | None = None) -> nn.Module:
    """torchvision's ResNet-50 without its head, its weights as torchvision draws them, or these."""
    from torchvision.models import resnet50  # seconds to import, so only when asked for

    backbone = resnet50(norm_layer=lambda width: normalisation(norm, width))
    if channels != 3:
        backbone.conv1 = initialised(nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False))
    if weights is not None:
        backbone.load_state_dict(weights)
    backbone.fc = nn.Identity()
    backbone.feature_size = 2048
    network: nn.Module = backbone
    return network


def pretrained_resnet50() -> nn.Module:
    """ResNet-50 with torchvision's first ImageNet weights."""
    return resnet50(3, "batch", _imagenet_weights())


def _imagenet_weights() -> dict[str, object]:
    from torchvision.models import ResNet50_Weights

    weights = ResNet50_Weights.IMAGENET1K_V1
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise MissingData(
            f"the ImageNet weights of resnet50 could not be fetched ({error}); "
            f"put {weights.url} into torch's cache folder (TORCH_HOME) or train without them"
        ) from None
