"""FedProx: FedAvg with a proximal term that keeps the local model near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. "Federated Optimization in Heterogeneous Networks".
MLSys 2020.
"""

from __future__ import annotations

from torch import nn

from flnl_bench import Batch, Client, Method, NotNegative
from flnl_bench.numerics import add_pull


class FedProx(Method):
    """Cross-entropy + ½μ‖w − w_g‖² over the trainable parameters."""

    name = "fedprox"
    reference = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    version = 2  # the recorded training loss is the cross-entropy alone

    mu: NotNegative = 1.0  # μ

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """w and w_g."""
        client.scratch["pair"] = list(model.parameters()), list(client.received.parameters())

    def on_gradient(self, model: nn.Module, batch: Batch, client: Client) -> None:
        """The gradient of the proximal term, μ(w − w_g)."""
        weights, anchors = client.scratch["pair"]
        add_pull(weights, anchors, self.mu)
