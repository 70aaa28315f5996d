"""The table of networks; torch is imported only when a network is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from flnl_bench.errors import BadInput, expect, unknown
from flnl_bench.registry import Registry, call, check_entry

if TYPE_CHECKING:
    from torch import nn

    from flnl_bench.models.networks import Network

NORMS = ("batch", "group")


@dataclass(frozen=True)
class ModelKind:
    """A network by name, without its head.

    `build(channels, norm)` returns a module that turns images [B, channels, H, W] into features [B, D], and
    has D in its attribute `feature_size`. Its optional attribute `head_class` is the class of the head in
    place of nn.Linear, with the same arguments: D and the number of classes.
    """

    name: str  # lower-case words joined by dashes
    help: str  # with the number of weights
    build: Callable[[int, str], nn.Module]
    # Returns the same module with ImageNet weights, for colour images and the norm "batch".
    pretrained: Callable[[], nn.Module] | None = None


def check_model(entry: object) -> None:
    """Raise an error for an entry that could not be built."""
    check_entry(ModelKind, entry)
    assert isinstance(entry, ModelKind)
    if not callable(entry.build):
        raise BadInput(f"ModelKind {entry.name!r} has no function `build`")


def _networks() -> ModuleType:
    from flnl_bench.models import networks

    return networks


MODELS: Registry[ModelKind] = Registry(
    "model",
    "flnl_register_models",
    check_model,
    (
        ModelKind(
            "tiny-cnn",
            "three convolutions for small grey images (8×8 to 28×28), 94 thousand weights",
            lambda channels, norm: _networks().tiny_cnn(channels, norm),
        ),
        ModelKind(
            "tiny-cnn-16",
            "tiny-cnn half as wide (16, 32 and 64 channels), 24 thousand weights",
            lambda channels, norm: _networks().tiny_cnn(channels, norm, width=16),
        ),
        ModelKind(
            "tiny-cnn-16-quarter",
            "tiny-cnn-16 with a stride of 4 in the stem, for images of 28×28 or 32×32, 25 thousand weights",
            lambda channels, norm: _networks().tiny_cnn(channels, norm, width=16, stride=4),
        ),
        ModelKind(
            "resnet8",
            "CIFAR ResNet with one block per stage, 75 thousand weights",
            lambda channels, norm: _networks().thin_resnet(8, channels, norm),
        ),
        ModelKind(
            "resnet8-wide-half",
            "resnet8 twice as wide, with projections and a stride of 2 in the stem, 0.31 million weights",
            lambda channels, norm: _networks().resnet8_wide_half(channels, norm),
        ),
        ModelKind(
            "resnet20",
            "CIFAR ResNet of He et al. with three blocks per stage, 0.27 million weights",
            lambda channels, norm: _networks().thin_resnet(20, channels, norm),
        ),
        ModelKind(
            "resnet18",
            "ResNet-18 with a 3×3 stem for 32×32 images, 11.2 million weights",
            lambda channels, norm: _networks().wide_resnet((2, 2, 2, 2), channels, norm),
        ),
        ModelKind(
            "resnet18-projection",
            "resnet18 and a normalised linear layer, as in the code of FedGR's authors, 11.4 million weights",
            lambda channels, norm: _networks().projected_resnet18(channels, norm),
        ),
        ModelKind(
            "resnet34",
            "ResNet-34 with a 3×3 stem for 32×32 images, 21.3 million weights",
            lambda channels, norm: _networks().wide_resnet((3, 4, 6, 3), channels, norm),
        ),
        ModelKind(
            "resnet50",
            "torchvision's ResNet-50 for 224×224 images, optional ImageNet weights, 23.5 million weights",
            lambda channels, norm: _networks().resnet50(channels, norm),
            pretrained=lambda: _networks().pretrained_resnet50(),
        ),
    ),
)


def find_model(name: str, norm: str = "batch", pretrained: bool = False) -> ModelKind:
    """Return the entry of a network, or raise an error if norm or pretraining are not possible."""
    kind = MODELS.find(name)
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if pretrained and (kind.pretrained is None or norm != "batch"):
        pretrained_names = ", ".join(entry.name for entry in MODELS.complete().values() if entry.pretrained)
        network = name if norm == "batch" else f"{name} with the norm {norm!r}"
        raise BadInput(
            f"{network} has no ImageNet weights; they exist for --model {pretrained_names} --norm batch"
        )
    return kind


def make_network(
    name: str, *, channels: int, classes: int, norm: str = "batch", pretrained: bool = False
) -> Network:
    """Build a network with initial weights from torch's global generator.

    Args:
        name: a name in MODELS.
        channels: of the images.
        classes: outputs of the head.
        norm: "batch" or "group".
        pretrained: start from ImageNet weights; resnet50 only.
    """
    from flnl_bench.models.networks import Network

    kind, who = find_model(name, norm, pretrained), f"model {name!r}"
    if pretrained and channels != 3:
        raise BadInput(f"the ImageNet weights of {name} need three channels, not {channels}")
    build, arguments = (kind.pretrained, ()) if pretrained else (kind.build, (channels, norm))
    backbone = call(who, build, *arguments)  # type: ignore[arg-type]
    size = getattr(backbone, "feature_size", None)
    expect(isinstance(size, int), who, "build must give a module with an integer `feature_size`", backbone)
    return Network(backbone, size, classes)  # type: ignore[arg-type]


__all__ = ["MODELS", "NORMS", "ModelKind", "find_model", "make_network"]
