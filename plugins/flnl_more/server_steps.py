"""FedExP and FedDyn: better optimisation, not made for noise; the server's step is not a mean.

FedExP: Jhunjhunwala, Wang, Joshi. "FedExP: Speeding Up Federated Averaging via Extrapolation". ICLR 2023.
FedDyn: Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. "Federated Learning Based on Dynamic
Regularization". ICLR 2021. Both test other weights than those that they send.

Symbols: w sent weights, θ_k trained ones, Δ_k = θ_k − w, p_k = n_k/Σn, K clients, m sampled ones, N images,
h_k gradient that a client remembers, G sum of the moves over K, α_k = α·N/(K·n_k).
Choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Client,
    Federation,
    Method,
    Positive,
    Server,
    State,
    Update,
    Weights,
    network_weights,
)
from flnl_bench.numerics import STATISTICS, add_pull, average, is_finite


class SentApart(Method):
    """FedAvg whose server keeps the weights that it sends apart from those that are tested."""

    def server_state(self, server: Server) -> State:
        """The weights to send; None: those of the start."""
        return {"sent": None}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """Send, train, and take the server's step, unless all models diverged."""
        tested = server.weights
        if server.state["sent"] is not None:
            server.weights = {name: w.to(tested[name]) for name, w in server.state["sent"].items()}
        updates = [u for u in federation.train(self.sample(server)) if is_finite(u.weights)]
        if updates:
            return self.step(server, updates)
        server.weights = tested
        return {}

    def step(self, server: Server, updates: Sequence[Update]) -> Mapping[str, float]:
        """Set `server.weights` to what is tested and `server.state["sent"]`; return numbers to record."""
        raise NotImplementedError


def parameters_of(weights: Weights) -> list[str]:
    """Return the names of all weights but the statistics of BatchNorm, which have no gradient."""
    return [name for name in weights if not name.endswith(STATISTICS)]


def squared_length(weights: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return ‖a − b‖² without BatchNorm statistics, in double precision."""
    names = parameters_of(dict(weights))
    return sum(float((weights[name] - other[name]).cpu().double().square().sum()) for name in names)


class FedExP(SentApart):
    """The server goes beyond the mean, the farther the more updates differ; tests the last two iterates."""

    name = "fedexp"
    reference = "Jhunjhunwala et al., FedExP: Speeding Up FedAvg via Extrapolation, ICLR 2023"

    epsilon: Positive = 1e-3  # ε; an absolute number, so that η_g is 1 where updates are small
    average_last: bool = True  # test the mean of the last two iterates

    def step(self, server: Server, updates: Sequence[Update]) -> Mapping[str, float]:
        """w ← w + η_g·Δ̄; BatchNorm statistics are the plain mean."""
        new, step, ratio = extrapolated(server.weights, updates, self.epsilon)
        before = server.state["sent"]
        server.state["sent"], server.weights = new, dict(new)
        if self.average_last and before is not None:
            for name in parameters_of(new):
                server.weights[name] = (new[name] + before[name].to(new[name])) / 2
        return {"server_step": step, "step_ratio": ratio}


def extrapolated(weights: Weights, updates: Sequence[Update], epsilon: float) -> tuple[Weights, float, float]:
    """Return w + η_g·Δ̄, η_g = max(1, ratio) and the ratio Σp_k‖Δ_k‖² / (2(‖Δ̄‖² + m·ε))."""
    sizes = [u.size for u in updates]
    mean = average([u.weights for u in updates], sizes)
    lengths = sum(n * squared_length(u.weights, weights) for n, u in zip(sizes, updates, strict=True))
    ratio = lengths / sum(sizes) / (2 * (squared_length(mean, weights) + len(updates) * epsilon))
    if ratio > 1:
        mean |= {name: weights[name] + ratio * (mean[name] - weights[name]) for name in parameters_of(mean)}
    return mean, max(1.0, ratio), ratio


class FedDyn(SentApart):
    """Clients remember their gradients, so that local optima agree with the global one (from the code)."""

    name = "feddyn"
    reference = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"

    alpha: Positive = 0.01  # α
    scaled: bool = True  # α_k = α·N/(K·n_k); without: α
    evaluate: Literal["mean", "sent"] = "mean"  # what is tested: the mean of the models, or what is sent next

    def server_state(self, server: Server) -> State:
        """The weights to send, and G."""
        names = parameters_of(server.weights)
        return {"sent": None, "moves": {name: torch.zeros_like(server.weights[name]) for name in names}}

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """α_k: a client does not know N."""
        share = sum(server.sizes) / (server.terms.clients * server.sizes[client_id])
        return {"strength": self.alpha * (share if self.scaled else 1.0)}

    def step(self, server: Server, updates: Sequence[Update]) -> Mapping[str, float]:
        """w ← mean + G, without weights of clients."""
        mean = average([u.weights for u in updates], [u.size for u in updates])  # statistics
        plain = average([u.weights for u in updates], [1] * len(updates))
        sent = dict(mean)
        for name, moved in server.state["moves"].items():
            moved = moved.to(plain[name])
            total = torch.stack([u.weights[name] - server.weights[name] for u in updates]).sum(0)
            moved = server.state["moves"][name] = moved + total / server.terms.clients
            mean[name], sent[name] = plain[name], plain[name] + moved
        server.weights, server.state["sent"] = (mean if self.evaluate == "mean" else dict(sent)), sent
        zeros = {name: torch.zeros_like(w) for name, w in server.state["moves"].items()}
        return {"correction": squared_length(server.state["moves"], zeros) ** 0.5}

    def client_state(self, client: Client) -> State:
        """h_k = 0."""
        return {"gradient": [torch.zeros_like(w) for w in client.received.parameters()]}

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """θ and w."""
        client.scratch["pair"] = list(model.parameters()), list(client.received.parameters())

    def on_gradient(self, model: nn.Module, batch: Batch, client: Client) -> None:
        """Add −h_k + α_k(θ − w)."""
        weights, anchors = client.scratch["pair"]
        add_pull(weights, anchors, client.inbox["strength"])
        torch._foreach_sub_([w.grad for w in weights if w.grad is not None], client.state["gradient"])

    @torch.no_grad()
    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """Nothing; h_k ← h_k − α_k(θ − w), if θ is finite."""
        if is_finite(network_weights(model)):
            moves = torch._foreach_sub(*client.scratch["pair"])
            client.state["gradient"] = list(
                torch._foreach_sub(
                    client.state["gradient"], torch._foreach_mul(moves, client.inbox["strength"])
                )
            )
        return {}
