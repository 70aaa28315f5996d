"""FedProx: FedAvg with a proximal term that keeps the local model near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. "Federated Optimization in Heterogeneous Networks".
MLSys 2020.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import Batch, Client, Method, NotNegative
from flnl_bench.numerics import squared_distances


class FedProx(Method):
    """Cross-entropy + ½μ‖w − w_g‖² over the trainable parameters."""

    name = "fedprox"
    reference = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: NotNegative = 1.0  # μ

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The loss of each example plus the proximal term, which all of them share."""
        # One after the other: Tensor.sum adds in another order, and recorded losses would move by a bit.
        distance = sum(squared_distances(model, client.received))
        return F.cross_entropy(model(batch.x), batch.y, reduction="none") + 0.5 * self.mu * distance
