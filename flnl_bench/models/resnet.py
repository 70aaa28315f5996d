"""Residual networks for 32×32 images (He et al., Deep Residual Learning, CVPR 2016).

The thin ones (ResNet-8, -20) are those of the paper's section 4.2 and use its shortcut A: the
identity, every second pixel, new channels zero. The wide ones (ResNet-18, -34) are the ImageNet
networks with a 3×3 stem and no pooling, and with 1×1 convolutions as shortcuts (B).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.models.layers import convolution, normalisation


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
        return self.blocks(self.stem(x)).mean((2, 3))


def thin_resnet(depth: int, channels: int, norm: str, stride: int = 1) -> ResNet:
    """The network of 6n + 2 layers, n blocks a stage; `stride` is that of the stem."""
    return ResNet(channels, (16, 32, 64), [(depth - 2) // 6] * 3, norm, projection=False, stride=stride)


def wide_resnet(blocks: Sequence[int], channels: int, norm: str) -> ResNet:
    """The network of 64 to 512 channels with these blocks a stage."""
    return ResNet(channels, (64, 128, 256, 512), blocks, norm, projection=True)
