"""The pieces that the backbones share: convolution, normalisation and their initial weights."""

from __future__ import annotations

from torch import nn

from flnl_bench.errors import unknown

NORMS = ("batch", "group")


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size up to its stride; no bias, as a normalisation follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def normalisation(norm: str, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm with groups of at least four channels and at most 32 groups."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        most = max(1, min(32, channels // 4))
        return nn.GroupNorm(next(groups for groups in range(most, 0, -1) if channels % groups == 0), channels)
    raise unknown("norm", norm, NORMS)


def initialise(module: nn.Module) -> None:
    """Draw the weights of all convolutions as He et al. (2015) do, by their fan-out."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
