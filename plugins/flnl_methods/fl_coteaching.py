"""FL-Coteaching: two networks choose small-loss samples for each other, inside FedAvg.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. "Co-teaching: Robust Training of Deep Neural Networks with
Extremely Noisy Labels". NeurIPS 2018; run in a federation as in the baselines of FedGR (ICML 2026).

Symbols: t round (from 0), τ final forget rate, T_k rounds until it is reached, c its exponent, f_t share
of a batch that is dropped in round t, l_1 / l_2 losses of the two networks, I_1 / I_2 what they keep.

τ is one constant for all clients, clean ones included, as in the published scripts. The variant that
gives each client its true noise rate is left out: a method cannot see true labels here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import Batch, Beliefs, Client, Federation, Method, Positive, Range, Server, State, Terms
from flnl_bench.numerics import (
    check_forget_rate,
    final_forget_rate,
    forget_ramp,
    forget_rate,
    kept_count,
    mean_of_kept,
    small_loss,
)


class FLCoteaching(Method):
    """Each network trains on what the other one keeps; both are averaged, each with its own kind."""

    name = "fl-coteaching"
    reference = "Han et al., Co-teaching: Robust Training with Extremely Noisy Labels, NeurIPS 2018"
    members = ("first", "second")
    variants = {"plus": "flnl_methods.fl_coteaching_plus:FLCoteachingPlus"}

    forget_rate: float | None = None  # τ; None is what the setting announces, φ·E[ρ]
    ramp_rounds: Annotated[int, Range(1)] = 25  # T_k at most; a fifth of the rounds where that is less
    exponent: Positive = 1.0  # c

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T_k."""
        return forget_ramp(terms.rounds, self.ramp_rounds)

    def forget(self, t: int, terms: Terms) -> float:
        """f_t; it counts rounds, not epochs."""
        tau = final_forget_rate(self.forget_rate, terms)
        return forget_rate(t, tau, self.warmup(terms), self.exponent)

    def server_state(self, server: Server) -> State:
        """Refuse a missing τ and warn of a too high one before the first round."""
        check_forget_rate(self.forget_rate, server.terms, self.name)
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
        logits: Tensor = first(x) + second(x)
        return logits

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
