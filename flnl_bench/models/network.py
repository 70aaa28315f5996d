"""The structure of every network: a backbone that returns features and a linear head that returns logits."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, autocast, bfloat16, is_grad_enabled, nn
from torch.compiler import is_compiling

from flnl_bench.engine.ledger import Cost


class Network(nn.Module):
    """A backbone and a linear head; counts the samples that pass through it."""

    meter: Cost | None = None  # set by the engine; None: do not count
    autocasts: bool = False  # set by the engine: compute in bfloat16; outputs are float32

    def __init__(self, backbone: nn.Module, feature_size: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_size = feature_size
        self.head: nn.Linear = getattr(backbone, "head_class", nn.Linear)(feature_size, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the features [B, D] of images [B, C, H, W]."""
        self._count(x.shape[0])
        return self._run(self.backbone, x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of images."""
        return self._run(self.head, self.features(x))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the logits of images, in one pass."""
        features = self.features(x)
        return features, self._run(self.head, features)

    def _run(self, part: nn.Module, x: Tensor) -> Tensor:
        outputs: Tensor
        if not self.autocasts:
            outputs = part(x)
            return outputs
        with autocast(x.device.type, dtype=bfloat16):
            outputs = part(x)
            return outputs.float()

    def _count(self, samples: int) -> None:
        # A compiled caller would be compiled again for every value of the counters. To compile and
        # count, compile only the backbone: `network.backbone.compile()`.
        if is_compiling() or self.meter is None:
            return
        self.meter.forward += samples
        if is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            self.meter.backward += samples

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        # A copy, such as the teacher of a method, counts into the same meter.
        twin = self.__class__.__new__(self.__class__)
        memo |= {id(self): twin, id(self.meter): self.meter}
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin
