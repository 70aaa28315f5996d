"""The network example, without its head."""

from torch import Tensor, nn

from flnl_bench import ModelKind, hookimpl

flnl_api = 1  # the version of flnl-bench's plugin API that this is written for


class Backbone(nn.Module):
    """One hidden layer over an 8×8 version of the image."""

    feature_size = 64

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(64 * channels, 64),
            nn.BatchNorm1d(64) if norm == "batch" else nn.LayerNorm(64),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, 64] of images [B, channels, H, W]."""
        features: Tensor = self.hidden(x)
        return features


EXAMPLE = ModelKind("example", "one hidden layer, 4 thousand weights for grey images", Backbone)


@hookimpl
def flnl_register_models() -> list[ModelKind]:
    """What this plugin adds."""
    return [EXAMPLE]
