"""FL-Coteaching: two networks choose small-loss samples for each other, inside FedAvg.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. "Co-teaching: Robust Training of Deep Neural Networks with
Extremely Noisy Labels". NeurIPS 2018; run in a federation as in the baselines of FedGR (ICML 2026).

Symbols: t round (from 0), τ final forget rate, T_k rounds until it is reached, c its exponent, f_t share
of a batch that is dropped in round t, l_1 / l_2 losses of the two networks, I_1 / I_2 what they keep.

τ is one constant for all clients, clean ones included, as in the published scripts. The variant that
gives each client its true noise rate is left out: a method cannot see true labels here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import BadInput, Batch, Beliefs, Client, Federation, Method, Server, State, Terms, bounded

CEILING = 0.95  # of τ: dropping everything leaves nothing to learn from


class FLCoteaching(Method):
    """Each network trains on what the other one keeps; both are averaged, each with its own kind."""

    name = "fl-coteaching"
    reference = "Han et al., Co-teaching: Robust Training with Extremely Noisy Labels, NeurIPS 2018"
    members = ("first", "second")

    forget_rate: float | None = None  # τ; None is what the setting announces, φ·E[ρ]
    ramp_rounds: int = 25  # T_k at most; a fifth of the rounds where that is less (10 of 50)
    exponent: float = 1.0  # c

    def __post_init__(self) -> None:
        bounded(self, "ramp_rounds", low=1)
        bounded(self, "exponent", above=True)

    # -- schedule ----------------------------------------------------------------------------------
    def forget(self, t: int, terms: Terms) -> float:
        """f_t; it counts rounds, not epochs."""
        tau = final_rate(self.forget_rate, terms)
        return forget_rate(t, tau, ramp(terms.rounds, self.ramp_rounds), self.exponent)

    def server_state(self, server: Server) -> State:
        """Nothing; but a τ that is missing or too high is told before the first round."""
        check_rate(self.forget_rate, server.terms, self.name)
        return {}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg over both networks; f_t is recorded."""
        super().round(server, federation)
        return {"forget_rate": self.forget(server.round, server.terms)}

    # -- two networks ------------------------------------------------------------------------------
    def build(self, new_net: Callable[[], nn.Module]) -> nn.Module:
        """w_1 and w_2, from different draws: equal networks would only teach themselves."""
        return nn.ModuleDict({"first": new_net(), "second": new_net()})

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The sum of the logits."""
        first, second = model.children()
        return first(x) + second(x)

    # -- a round on a client -----------------------------------------------------------------------
    def on_receive(self, model: nn.Module, client: Client) -> None:
        """f_t, and a clean sheet for what the two networks keep; only the recorder reads it."""
        client.scratch["forget"] = self.forget(client.round, client.terms)
        client.state["kept"] = torch.ones(client.size, 2, dtype=torch.bool, device=client.y.device)
        client.state["judged"] = client.scratch["forget"] > 0

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """L_1 + L_2: the graphs are separate, so each network gets the gradient of its own loss."""
        l_1, l_2 = (F.cross_entropy(net(batch.x), batch.y, reduction="none") for net in model.children())
        count = kept_count(len(batch.y), client.scratch["forget"])
        i_1, i_2 = small_loss(l_1, count), small_loss(l_2, count)
        client.state["kept"][batch.index] = torch.stack((i_1, i_2), dim=1)
        return mean_of_kept(l_1, i_2) + mean_of_kept(l_2, i_1)

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Clean is what both networks kept in the client's last epoch, once they had to drop something."""
        kept = state["kept"]
        if not state["judged"]:
            return Beliefs()
        agreement = (kept[:, 0] == kept[:, 1]).float().mean().item()
        return Beliefs(clean=kept.all(1), numbers={"networks_agree": agreement})


# -- the forget rate -----------------------------------------------------------------------------------
def ramp(rounds: int, longest: int = 25) -> int:
    """T_k: a fifth of the rounds, at least three, so that networks learn before they drop."""
    return min(longest, max(3, round(0.2 * rounds)))


def forget_rate(t: int, tau: float, ramp_rounds: int, exponent: float = 1.0) -> float:
    """f_t = τ^c·t/(T_k − 1) for t < T_k, then τ: the published code's form, in which round 0 keeps all."""
    return tau**exponent * t / max(1, ramp_rounds - 1) if t < ramp_rounds else tau


def final_rate(given: float | None, terms: Terms) -> float:
    """τ as given, or as the setting announces it; the ceiling where nothing would be kept."""
    tau = terms.expected_noise if given is None else given
    return CEILING if tau >= 1 else tau


def check_rate(given: float | None, terms: Terms, method: str) -> None:
    """Refuse a τ that is unknown or negative; warn of one that has to be lowered."""
    tau = terms.expected_noise if given is None else given
    if math.isnan(tau):
        raise BadInput(
            f"{method} must know which share of the labels to drop, and natural noise announces none: "
            "give --set forget_rate=SHARE (Clothing1M: 0.39)"
        )
    if tau < 0:
        raise BadInput(f"--set forget_rate={tau:g}: {method} expects a share, 0 or more")
    if tau >= 1:
        warnings.warn(
            f"{method}: a forget rate of {tau:g} drops every label, {CEILING} is used", stacklevel=2
        )


# -- the choice of samples -----------------------------------------------------------------------------
def kept_count(size: int, forget: float) -> int:
    """k = ⌊(1 − f)·b⌋, at least one; 1e-9 against (1 − 0.8)·5 < 1."""
    return max(1, int((1 - forget) * size + 1e-9))


def small_loss(losses: Tensor, count: int) -> Tensor:
    """The `count` smallest losses as a mask [B]; of equal ones the first."""
    order = losses.detach().argsort(stable=True)
    return torch.zeros_like(order, dtype=torch.bool).index_fill(0, order[:count], True)


def mean_of_kept(losses: Tensor, kept: Tensor) -> Tensor:
    """Per-example terms [B] whose mean is the mean of the kept losses; zero if none is kept."""
    return torch.where(kept, losses, 0.0) * (len(losses) / kept.sum().clamp_min(1))
