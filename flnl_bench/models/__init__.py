"""The networks by name; torch is loaded only when one is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flnl_bench.models.network import Network

MODELS: dict[str, str] = {
    "tiny-cnn": "three convolutions for small grey images (8×8 to 28×28), 94 thousand weights",
    "tiny-cnn-16": "tiny-cnn half as wide: faster, but too weak to tell wrong labels, 24 thousand weights",
    "resnet8": "CIFAR ResNet with one block a stage, 75 thousand weights",
    "resnet8-half": "resnet8 with a stride of 2 in the stem, so a quarter of its work, 75 thousand weights",
    "resnet20": "CIFAR ResNet of He et al. with three blocks a stage, 0.27 million weights",
    "resnet18": "ResNet-18 with a 3×3 stem for 32×32 images, 11.2 million weights",
    "resnet34": "ResNet-34 with a 3×3 stem for 32×32 images, 21.3 million weights",
    "resnet50": "torchvision's ResNet-50 for 224×224 images, optional ImageNet weights, 23.5 million weights",
}


def make_network(
    name: str, *, channels: int, classes: int, norm: str = "batch", pretrained: bool = False
) -> Network:
    """Build a network, its initial weights drawn from torch's global generator.

    Args:
        name: one of MODELS.
        channels: of the images.
        classes: outputs of the head.
        norm: "batch" or "group".
        pretrained: start from ImageNet weights; resnet50 only.
    """
    from flnl_bench.models.backbones import build_network

    return build_network(name, channels, classes, norm, pretrained)


__all__ = ["MODELS", "make_network"]
