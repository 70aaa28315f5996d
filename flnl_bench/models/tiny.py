"""A network for images of 8×8 to 28×28 pixels that trains in seconds on one core."""

from __future__ import annotations

from torch import Tensor, nn

from flnl_bench.models.layers import convolution, normalisation


class TinyCNN(nn.Module):
    """Three convolutions, each with normalisation and ReLU; the features keep their places.

    A mean over places would make the net too weak to memorise wrong labels, which is what is studied.
    """

    def __init__(self, channels: int, size: int, norm: str) -> None:
        super().__init__()
        side = -(-size // 4)
        self.feature_size = 64 * side * side
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((channels, 16, 1), (16, 32, 2), (32, 64, 2)):
            layers += [
                convolution(inputs, outputs, stride=stride),
                normalisation(norm, outputs),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The features [B, 64·side²] of images."""
        return self.layers(x).flatten(1)
