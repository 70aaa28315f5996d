"""Local SGD on torch's fused kernel.

torch.optim.SGD does the same (a test compares them bit by bit) but its first step imports
torch._dynamo, which takes longer than importing torch, and its wrappers cost a tenth of a small step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Optimiser:
    """The settings of local SGD; a fresh one is started for every client and round."""

    lr: float
    momentum: float
    weight_decay: float

    def start(self, parameters: Iterable[nn.Parameter]) -> SGD:
        """An SGD with empty momentum."""
        return SGD(list(parameters), self)


class SGD:
    """One client's optimiser; parameters without a gradient are left alone."""

    def __init__(self, parameters: list[nn.Parameter], settings: Optimiser) -> None:
        self.parameters, self.settings = parameters, settings
        self._momenta: dict[int, Tensor] = {}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """w ← w − lr·v with v ← momentum·v + g + weight decay·w."""
        live: list[Tensor] = [p for p in self.parameters if p.grad is not None]
        if not live:
            return
        momenta: list[Tensor] = []
        if self.settings.momentum:
            # A buffer of zeros makes the first step like any other.
            momenta = [self._momenta.setdefault(id(p), torch.zeros_like(p)) for p in live]
        torch._fused_sgd_(
            live,
            [p.grad for p in live if p.grad is not None],
            momenta,
            weight_decay=self.settings.weight_decay,
            momentum=self.settings.momentum,
            lr=self.settings.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
