"""Networks: a backbone that returns features, and a linear head; the built-in backbones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, autocast, bfloat16, nn
from torch.compiler import is_compiling

from flnl_bench.engine.ledger import Cost
from flnl_bench.errors import MissingData, unknown
from flnl_bench.models import NORMS

Module = TypeVar("Module", bound=nn.Module)


class Network(nn.Module):
    """A backbone and a linear head; counts the samples that pass through it."""

    meter: Cost | None = None  # set by the engine; None: do not count
    autocasts: bool = False  # set by the engine: compute in bfloat16; outputs are float32
    # Set by the engine: returns an output of a part that was computed together with other clients, or None.
    ahead: Callable[[nn.Module, Tensor], Tensor | None] | None = None

    def __init__(self, backbone: nn.Module, feature_size: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_size = feature_size
        self.head: nn.Linear = getattr(backbone, "head_class", nn.Linear)(feature_size, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the features [B, D] of images [B, C, H, W]."""
        features = self.run(self.backbone, x)
        self._count(features)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of images."""
        return self.run(self.head, self.features(x))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the logits of images, in one pass."""
        features = self.features(x)
        return features, self.run(self.head, features)

    def run(self, part: nn.Module, x: Tensor) -> Tensor:
        """Return the output of the backbone or the head."""
        ready = self.ahead(part, x) if self.ahead else None
        return self.compute(part, x) if ready is None else ready

    def compute(self, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Compute the output of a part, in the precision of the run."""
        if not self.autocasts:
            outputs: Tensor = part(x)
            return outputs
        with autocast(x.device.type, dtype=bfloat16):
            converted: Tensor = part(x).float()
            return converted

    def _count(self, features: Tensor) -> None:
        # A compiled caller would be compiled again for every value of the counters. To compile and
        # count, compile only the backbone: `network.backbone.compile()`.
        if is_compiling() or self.meter is None:
            return
        self.meter.forward += len(features)
        if features.requires_grad:
            self.meter.backward += len(features)

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        # A copy, such as the teacher of a method, counts into the same meter, and computes its own outputs.
        twin = self.__class__.__new__(self.__class__)
        memo |= {id(self): twin, id(self.meter): self.meter, id(self.ahead): None}
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin


# -- backbones ---------------------------------------------------------------------------------------
def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that divides the size by its stride; no bias, because a normalisation follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=(kernel - stride + 1) // 2, bias=False)


def normalisation(norm: str, channels: int) -> nn.Module:
    """Return BatchNorm, or GroupNorm with at most 32 groups of at least four channels."""
    if norm == "batch":
        return BatchNorm(channels)
    if norm == "group":
        most = max(1, min(32, channels // 4))
        return nn.GroupNorm(next(groups for groups in range(most, 0, -1) if channels % groups == 0), channels)
    raise unknown("norm", norm, NORMS)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm of maps or features, also of a single image whose map has one position.

    One value per channel has no variance, so the running statistics normalise it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None  # only cumulative means need it, and it is a kernel per step

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # any number of positions

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [B, C] or [B, C, H, W]."""
        if self.training and input.numel() == input.shape[1]:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def initialised(module: Module) -> Module:
    """Draw the weights of all convolutions as in He et al. (2015), by their fan-out."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return module


class TinyCNN(nn.Module):
    """Three convolutions, each with normalisation and ReLU, and the mean over all positions."""

    def __init__(self, channels: int, norm: str, width: int = 32, stride: int = 1) -> None:
        super().__init__()
        self.feature_size = 4 * width
        stem = max(3, stride + 1)  # covers every pixel
        layers: list[nn.Module] = []
        for layer in (
            convolution(channels, width, stem, stride),
            convolution(width, 2 * width, stride=2),
            convolution(2 * width, 4 * width, stride=2),
        ):
            layers += [layer, normalisation(norm, layer.out_channels), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [B, 4·width] of images of any size."""
        maps: Tensor = self.layers(x)  # [B, 4·width, H', W']
        return maps.mean((2, 3))


class PaddedShortcut(nn.Module):
    """The shortcut of a block that halves the size and adds channels, without weights."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Return every `stride`-th pixel, with zero channels on both sides."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class Block(nn.Module):
    """A residual block of two 3×3 convolutions."""

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
        """Return the rectified sum of the convolutions and the shortcut."""
        inner = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(self.second_norm(self.second(inner)).add_(self.shortcut(x)), inplace=True)


class ResNet(nn.Module):
    """A 3×3 stem, stages of residual blocks that halve the size, and the mean over all positions."""

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
        """Return the features of images of any size."""
        maps: Tensor = self.blocks(self.stem(x))  # [B, D, H', W']
        return maps.mean((2, 3))


class RectifiedHead(nn.Linear):
    """A linear head after a ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of features."""
        return super().forward(x.relu())


class Projected(nn.Module):
    """A backbone and a normalised linear layer, whose outputs of both signs are the features."""

    head_class = RectifiedHead

    def __init__(self, backbone: ResNet, norm: str) -> None:
        super().__init__()
        self.backbone, self.feature_size = backbone, backbone.feature_size
        self.linear = nn.Linear(self.feature_size, self.feature_size, bias=False)
        self.norm = normalisation(norm, self.feature_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of images."""
        features: Tensor = self.norm(self.linear(self.backbone(x)))
        return features


def tiny_cnn(channels: int, norm: str, width: int = 32, stride: int = 1) -> TinyCNN:
    """Build the smallest network; `stride` is the stride of its first convolution."""
    return initialised(TinyCNN(channels, norm, width, stride))


def thin_resnet(depth: int, channels: int, norm: str) -> ResNet:
    """Build a ResNet of 6n + 2 layers, n blocks per stage."""
    blocks = [(depth - 2) // 6] * 3
    return initialised(ResNet(channels, (16, 32, 64), blocks, norm, projection=False))


def resnet8_wide_half(channels: int, norm: str) -> ResNet:
    """Build a ResNet of one block per stage and 32 to 128 channels, whose stem halves the size."""
    return initialised(ResNet(channels, (32, 64, 128), (1, 1, 1), norm, projection=True, stride=2))


def wide_resnet(blocks: Sequence[int], channels: int, norm: str) -> ResNet:
    """Build a ResNet of 64 to 512 channels; `blocks` has the number of blocks of each stage."""
    return initialised(ResNet(channels, (64, 128, 256, 512), blocks, norm, projection=True))


def projected_resnet18(channels: int, norm: str) -> Projected:
    """Build ResNet-18 with a normalised linear layer before its head, as in the code of FedGR's authors."""
    return Projected(wide_resnet((2, 2, 2, 2), channels, norm), norm)


def resnet50(channels: int, norm: str, weights: dict[str, Tensor] | None = None) -> nn.Module:
    """Build torchvision's ResNet-50 without its head, with its initial weights or the given weights."""
    from torchvision.models import resnet50  # here, because the import takes seconds

    backbone = resnet50(norm_layer=lambda width: normalisation(norm, width))
    if channels != 3:
        backbone.conv1 = initialised(nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False))
    if weights is not None:
        backbone.load_state_dict({n: w for n, w in weights.items() if not n.endswith("num_batches_tracked")})
    backbone.fc = nn.Identity()
    backbone.feature_size = 2048
    network: nn.Module = backbone
    return network


def pretrained_resnet50() -> nn.Module:
    """Build ResNet-50 with torchvision's first ImageNet weights (IMAGENET1K_V1)."""
    return resnet50(3, "batch", _imagenet_weights())


def _imagenet_weights() -> dict[str, Tensor]:
    from torchvision.models import ResNet50_Weights

    published = ResNet50_Weights.IMAGENET1K_V1
    try:
        weights: dict[str, Tensor] = published.get_state_dict(progress=False, check_hash=True)
        return weights
    except (OSError, RuntimeError) as error:
        raise MissingData(
            f"the ImageNet weights of resnet50 could not be downloaded ({error}); "
            f"put {published.url} into torch's cache folder (TORCH_HOME) or train without them"
        ) from None
