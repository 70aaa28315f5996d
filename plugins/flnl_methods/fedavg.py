"""FedAvg: local SGD from the global model, then the mean of the local models weighted by n_k.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. "Communication-Efficient Learning of Deep Networks
from Decentralized Data". AISTATS 2017.
"""

from __future__ import annotations

from typing import Literal

from flnl_bench import Method


class FedAvg(Method):
    """Local SGD, then the mean of the weights weighted by client size.

    `fedavg/strong` trains on strongly augmented images: the control for every method that does so.
    """

    name = "fedavg"
    reference = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
    variants = {"strong": {"view": "strong"}}

    view: Literal["plain", "weak", "strong"] = "weak"

    def views(self) -> tuple[str, ...]:
        """The one augmentation that is trained on."""
        return (self.view,)
