"""A network for images of 8×8 to 28×28 pixels that trains in about a minute on one core."""

from __future__ import annotations

from torch import Tensor, nn

from flnl_bench.models.layers import convolution, normalisation


class TinyCNN(nn.Module):
    """Three convolutions, each with normalisation and ReLU, and the mean over all places.

    With a width of 16 it separates the losses of right and wrong labels so badly that no sieve works.
    """

    def __init__(self, channels: int, norm: str, width: int = 32) -> None:
        super().__init__()
        self.feature_size = 4 * width
        layers: list[nn.Module] = []
        for inputs, outputs, stride in (
            (channels, width, 1),
            (width, 2 * width, 2),
            (2 * width, 4 * width, 2),
        ):
            layers += [
                convolution(inputs, outputs, stride=stride),
                normalisation(norm, outputs),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """The features [B, 4·width] of images of any size."""
        return self.layers(x).mean((2, 3))
