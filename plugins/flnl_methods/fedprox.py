"""FedProx: FedAvg with a proximal term that keeps the local model near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. "Federated Optimization in Heterogeneous Networks".
MLSys 2020.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import Batch, Client, Method, bounded


class FedProx(Method):
    """Cross-entropy + ½μ‖w − w_g‖² over the trainable parameters."""

    name = "fedprox"
    reference = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: float = 1.0  # μ

    def __post_init__(self) -> None:
        bounded(self, "mu")

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The loss of each example plus the proximal term, which all of them share."""
        pairs = zip(model.parameters(), client.received.parameters(), strict=True)
        distance = sum((w - w_g).square().sum() for w, w_g in pairs)
        return F.cross_entropy(model(batch.x), batch.y, reduction="none") + 0.5 * self.mu * distance
