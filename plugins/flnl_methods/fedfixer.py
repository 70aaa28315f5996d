"""FedFixer: the global model and a personal model of each client choose clean samples for each other.

Ji, Zhu, Xi, Gadyatskaya, Song, Cai, Liu. "FedFixer: Mitigating Heterogeneous Label Noise in Federated
Learning". AAAI 2024, pp. 12830-12838. A reconstruction: neither its full text nor its code could be read.
Every choice is unconfirmed; docs/methods.md lists them.

Symbols: w global model, θ_k personal model, K_w / K_θ what they keep, β weight of the confidence
regulariser, pr label prior, λ weight of the distance regulariser.

Where nothing is kept for a model in a batch, that model takes no step: no distance, no weight decay, and
its velocity waits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Method,
    NotNegative,
    Server,
    Share,
    State,
    Terms,
    copy_weights,
    network_weights,
)
from flnl_bench.numerics import (
    check_forget_rate,
    class_counts,
    final_forget_rate,
    forget_ramp,
    forget_rate,
    kept_count,
    linear_ramp,
    mean_of_kept,
    small_loss,
    squared_distances,
)


class FedFixer(Method):
    """The global and a personal model train on each other's selection (a reconstruction, unconfirmed)."""

    name = "fedfixer"
    reference = "Ji et al., FedFixer: Mitigating Heterogeneous Label Noise in Federated Learning, AAAI 2024"
    private = ("personal",)

    confidence: NotNegative = 0.1  # β
    confidence_ramp: Share = 0.1  # share of all rounds in which β grows, after the warm-up
    distance: NotNegative = 1.0  # λ
    warmup_share: Share = 0.2  # T_w as a share of all rounds; at least three rounds
    filter: Literal["sieve", "small_loss"] = "sieve"
    forget_rate: float | None = None  # τ of small_loss; None is what the setting announces, φ·E[ρ]
    cr_on_global: bool = False  # the confidence regulariser on the global model, too

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T_w, the rounds in which everything is kept."""
        return max(3, round(self.warmup_share * terms.rounds))

    def beta(self, t: int, terms: Terms) -> float:
        """β in round t: zero until the end of the warm-up, then a linear ramp."""
        length = max(1, round(self.confidence_ramp * terms.rounds))
        return self.confidence * linear_ramp(t, self.warmup(terms), length)

    def server_state(self, server: Server) -> State:
        """Refuse a forget rate that is needed and missing before the first round."""
        if self.filter == "small_loss":
            check_forget_rate(self.forget_rate, server.terms, self.name)
        return {}

    # -- two models --------------------------------------------------------------------------------
    def build(self, new_net: Callable[[], nn.Module]) -> nn.Module:
        """w, and a place for θ_k, which comes from the client."""
        net = new_net()
        return nn.ModuleDict({"shared": net, "personal": copy.deepcopy(net)})

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The global model alone."""
        logits: Tensor = model.get_submodule("shared")(x)
        return logits

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """θ_k = w at the first visit, and the label prior."""
        return {
            "personal": copy_weights(network_weights(client.received.get_submodule("shared"))),
            "prior": label_prior(client.y, client.terms.classes),
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """A clean sheet for what the two models keep; only the recorder reads it."""
        client.state["kept"] = torch.ones(client.size, 2, dtype=torch.bool, device=client.y.device)
        client.state["judged"] = client.round >= self.warmup(client.terms)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """L_θ over K_w + L_w over K_θ.

        The graphs are separate, so each model gets its own gradient, and both choices come from one
        forward pass, so it does not matter which model is updated first.
        """
        shared, personal = model.children()
        z_w, z_theta, y = shared(batch.x), personal(batch.x), batch.y
        k_w, k_theta = (self.keep(z.detach(), y, client.round, client.terms) for z in (z_w, z_theta))
        client.state["kept"][batch.index] = torch.stack((k_w, k_theta), dim=1)
        client.held.update({"personal": ~k_w.any(), "shared": ~k_theta.any()})
        beta, prior = self.beta(client.round, client.terms), client.state["prior"]
        l_theta = confident_loss(z_theta, y, prior, beta)
        if self.distance:
            w_ref = client.received.get_submodule("shared")
            l_theta = l_theta + 0.5 * self.distance * squared_distances(personal, w_ref).sum()
        l_w = confident_loss(z_w, y, prior, beta if self.cr_on_global else 0.0)
        return mean_of_kept(l_theta, k_w) + mean_of_kept(l_w, k_theta)

    def keep(self, logits: Tensor, y: Tensor, t: int, terms: Terms) -> Tensor:
        """The samples [B] that a model with these logits takes for clean."""
        since = t - self.warmup(terms)
        if since < 0:
            return torch.ones_like(y, dtype=torch.bool)
        if self.filter == "sieve":
            return sieve(logits, y)
        tau = final_forget_rate(self.forget_rate, terms)
        count = kept_count(len(y), forget_rate(since, tau, forget_ramp(terms.rounds)))
        return small_loss(F.cross_entropy(logits, y, reduction="none"), count)

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Clean is what both models kept in the last epoch of the client's last round after the warm-up."""
        if not state["judged"]:
            return Beliefs()
        by_global, by_personal = state["kept"].float().mean(0).tolist()
        numbers = {"kept_by_global": by_global, "kept_by_personal": by_personal}
        return Beliefs(clean=state["kept"].all(1), numbers=numbers)


def sieve(logits: Tensor, y: Tensor) -> Tensor:
    """CE(z, y) ≤ mean_c CE(z, c), which is z_y ≥ mean_c z_c; equal logits are kept."""
    return (logits - logits.gather(1, y.unsqueeze(1))).mean(1) <= 0


def confident_loss(logits: Tensor, y: Tensor, prior: Tensor, beta: float) -> Tensor:
    """CE(z, y) − β·Σ_c pr_c·CE(z, c); 1e-8 bounds the second term, without which it falls for ever."""
    loss = F.cross_entropy(logits, y, reduction="none")
    if not beta:
        return loss
    return loss + beta * ((logits.softmax(1) + 1e-8).log() * prior).sum(1)


def label_prior(y: Tensor, classes: int) -> Tensor:
    """pr: the shares of the given labels, each count plus one."""
    return (class_counts(y, classes) + 1) / (len(y) + classes)
