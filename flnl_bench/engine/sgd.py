"""Local SGD on torch's fused kernel.

torch.optim.SGD gives the same bits (a test compares them), but its first step imports torch._dynamo, which
takes longer than the import of torch, and its wrappers cost a tenth of a small step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
        self.parameters = dict(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._momenta: dict[str, Tensor] = {}

    def zero_grad(self) -> None:
        """Set the gradients to None; with zeros, weight decay and momentum would still change parameters."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, held: Mapping[str, Tensor] | None = None) -> None:
        """w ← w − lr·v with v ← momentum·v + g + weight decay·w.

        Args:
            held: flags by top-level part of the model; a part whose flag is 1 keeps w and v. The flag is read
                on the device, so nothing waits for it.
        """
        # Each part with a flag needs its own call: the kernel has one flag for all its tensors.
        live = {name: p for name, p in self.parameters.items() if p.grad is not None}
        for part, flag in (held or {}).items():
            flagged = {name: live.pop(name) for name in list(live) if name.split(".")[0] == part}
            self._move(flagged, flag.to(torch.float32))
        self._move(live, None)

    def _move(self, live: Mapping[str, nn.Parameter], hold: Tensor | None) -> None:
        if not live:
            return
        momenta: list[Tensor] = []
        if self.momentum:
            for name in live.keys() - self._momenta.keys():
                self._momenta[name] = torch.zeros_like(live[name])  # so the first step is like any other
            momenta = [self._momenta[name] for name in live]
        # A private function of torch, which torch.optim.SGD(fused=True) calls; a test compares both.
        torch._fused_sgd_(
            list(live.values()),
            [p.grad for p in live.values() if p.grad is not None],
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
