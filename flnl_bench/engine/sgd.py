"""Local SGD on torch's fused kernel.

torch.optim.SGD gives the same bits (a test compares them), but its first step imports torch._dynamo, which
takes longer than the import of torch, and its wrappers cost a tenth of a small step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn


class SGD:
    """The optimiser of one client in one round; parameters without a gradient do not change.

    Momentum is not kept between rounds, because a client starts from averaged weights.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self.names, self.parameters = zip(*parameters, strict=True)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        # Made at a parameter's first gradient, as zeros, so that the first step is like any other.
        self.momenta: list[Tensor | None] = [None] * len(self.parameters)

    def zero_grad(self) -> None:
        """Set the gradients to None; with zeros, weight decay and momentum would still change parameters."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, held: Mapping[str, Tensor] | None = None) -> None:
        """w ← w − lr·v with v ← momentum·v + g + weight decay·w.

        Args:
            held: flags by top-level part of the model; a part whose flag is 1 keeps w and v. The flag is read
                on the device, so nothing waits for it.
        """
        live = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        # Each part with a flag needs its own call: the kernel has one flag for all its tensors.
        for part, flag in (held or {}).items():
            flagged = [i for i in live if self.names[i].split(".")[0] == part]
            live = [i for i in live if i not in flagged]
            self._move(flagged, flag.to(torch.float32))
        self._move(live, None)

    def _move(self, live: Sequence[int], hold: Tensor | None) -> None:
        if not live:
            return
        weights = [self.parameters[i] for i in live]
        momenta = [self._momentum(i) for i in live] if self.momentum else []
        # A private function of torch, which torch.optim.SGD(fused=True) calls; a test compares both.
        torch._fused_sgd_(
            weights,
            [p.grad for p in weights if p.grad is not None],
            momenta,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=hold,  # intended for overflown gradients: if 1, the kernel writes nothing
        )

    def _momentum(self, i: int) -> Tensor:
        kept = self.momenta[i]
        if kept is None:
            kept = self.momenta[i] = torch.zeros_like(self.parameters[i])
        return kept
