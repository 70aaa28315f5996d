"""What every network is: a backbone that gives features and a linear head that gives logits."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, autocast, bfloat16, is_grad_enabled, nn
from torch.compiler import is_compiling

from flnl_bench.engine.ledger import Cost


class Network(nn.Module):
    """A feature extractor and a linear head; counts the samples that pass through it."""

    meter: Cost | None = None  # set by the engine; None: do not count
    autocasts: bool = False  # set by the engine: compute in bfloat16; what comes out is float32 all the same

    def __init__(self, backbone: nn.Module, feature_size: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_size = feature_size
        self.head: nn.Linear = getattr(backbone, "head_class", nn.Linear)(feature_size, classes)

    def features(self, x: Tensor) -> Tensor:
        """The features [B, D] of images [B, C, H, W]."""
        self._count(x.shape[0])
        return self._run(self.backbone, x)

    def forward(self, x: Tensor) -> Tensor:
        """The logits [B, classes] of images."""
        return self._run(self.head, self.features(x))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features and the logits of images, in one pass."""
        features = self.features(x)
        return features, self._run(self.head, features)

    def _run(self, part: nn.Module, x: Tensor) -> Tensor:
        if not self.autocasts:
            full: Tensor = part(x)
            return full
        with autocast(x.device.type, dtype=bfloat16):
            half: Tensor = part(x)
            return half.float()

    def _count(self, samples: int) -> None:
        # A compiled caller would be compiled anew for every value of the counters. To compile and
        # count, compile the backbone alone: `network.backbone.compile()`.
        if is_compiling() or self.meter is None:
            return
        self.meter.forward += samples
        if is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            self.meter.backward += samples

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        # A copy, say a teacher that a method keeps, goes on counting into the same meter.
        twin = self.__class__.__new__(self.__class__)
        memo |= {id(self): twin, id(self.meter): self.meter}
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin
