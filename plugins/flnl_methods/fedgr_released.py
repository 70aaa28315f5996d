"""FedGR as released: the eight points in which its authors' code differs from the paper's equations.

The paper's tables come from this code, which was read in two states: release `b` is the later one. Each
point is a switch of its own, and a section below; fedgr.py says what the equations do instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flnl_bench import Batch, Client, State, Step, mix_into, network_weights
from flnl_methods.fedgr import (
    FedGR,
    Guide,
    blend,
    clean_posterior,
    follow,
    losses_of,
    newest_pseudo_labels,
)


class FedGRReleased(FedGR):
    """FedGR by its authors' code."""

    variants = {}

    release: Literal["a", "b"] = "b"
    batch_weights: bool = True  # 1: labels are weighted by the mean q of the mini-batch
    keep_clean: bool = True  # 2: the store keeps labels once judged clean (b: only of clients below β)
    strict_beta: bool = True  # 3: b: a client at β itself still uses its labels
    late_coverage: bool = True  # 4: coverage counts D^r_k of the visit before, and r_k > β
    revise_twice: bool = True  # 5: w_g is mixed into the teacher again after its logits were taken
    ramped_ema: bool = True  # 6: the teacher follows twice a step, with a decay that grows over its life
    second_look: bool = True  # 7: b: also the local model's losses after an epoch; a: a new anchor per step
    unguarded: bool = True  # 8: short last batches are dropped, mixtures whose means coincide are believed

    # -- 1. labels weighted by the mean q of the mini-batch -----------------------------------------
    def refine_labels(self, q: Tensor, clean: Tensor, ratio: float, pseudo: Tensor) -> tuple[Tensor, Tensor]:
        """By the equations a sample judged clean has the share 1; here it has q."""
        share, other = super().refine_labels(q, clean, ratio, pseudo)
        weighted = self.batch_weights and self.refine and not self.is_noisy_client(ratio)
        return (q if weighted else share), other

    def target(self, batch: Batch, scratch: Mapping[str, Any]) -> Tensor:
        """Their losses [n] times a column of q [n, 1] is a matrix, whose mean is the product of the means."""
        if not (self.batch_weights and self.refine):
            return super().target(batch, scratch)
        share, given, guess = (
            scratch[part].index_select(0, batch.index) for part in ("share", "given", "guess")
        )
        return blend(share.to(given.dtype).mean(0, keepdim=True), given, guess)

    # -- 2. the store keeps labels once judged clean -------------------------------------------------
    def grow_store(self, state: State, logits: Tensor, y: Tensor, clean: Tensor, ratio: float) -> None:
        """A label judged clean enters, else a confident prediction; the store is D^r_k."""
        if not self.keep_clean:
            super().grow_store(state, logits, y, clean, ratio)
            return
        state["pseudo"] = newest_pseudo_labels(logits, self.confidence, state["pseudo"])
        if self.release == "a" or ratio < self.noisy_client:
            state["pseudo"] = torch.where(clean, y, state["pseudo"])
        state["usable"] = state["pseudo"] >= 0

    # -- 3. a client at β still uses its labels ------------------------------------------------------
    def is_noisy_client(self, ratio: float) -> bool:
        """b: r_k > β."""
        above = self.strict_beta and self.release == "b"
        return ratio > self.noisy_client if above else super().is_noisy_client(ratio)

    # -- 4. coverage of the visit before -------------------------------------------------------------
    def is_astray(self, client: Client, ratio: float) -> bool:
        """r_k > β and the store of the visit before covers less than μ."""
        if not self.late_coverage:
            return super().is_astray(client, ratio)
        usable = client.scratch["usable_before"].sum().item() / client.size
        return ratio > self.noisy_client and usable < self.coverage

    # -- 5. the teacher is revised twice -------------------------------------------------------------
    def on_receive(self, model: nn.Module, client: Client) -> None:
        """As by the equations, then mix w_g into the teacher again."""
        client.scratch["usable_before"] = client.state["usable"]  # for 4
        super().on_receive(model, client)
        if self.revise_twice and client.round >= self.warmup(client.terms):
            mix_into(client.state["teacher"], network_weights(client.received), self.gamma_g)

    # -- 6. the teacher follows twice a step, with a decay that grows --------------------------------
    def client_state(self, client: Client) -> State:
        """Also how often the teacher was updated in its life; the warm-up counts."""
        return {**super().client_state(client), "followed": 0}

    def on_step(self, model: nn.Module, client: Client) -> None:
        """Two updates towards the same weights are one, with the product of their decays."""
        if not self.ramped_ema:
            super().on_step(model, client)
            return
        state = client.state
        state["followed"] += 2
        keep = math.prod(ramped_decay(n, self.gamma_l) for n in (state["followed"] - 1, state["followed"]))
        follow(client, keep)

    # -- 7. a second look ----------------------------------------------------------------------------
    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """b: the losses of the local model after its first epoch enter the running mean."""
        looks = self.second_look and self.release == "b" and self.sieve == "federated"
        first = 1 if looks and client.epochs > 1 else client.epochs
        yield self.steps(client, first)
        if first < client.epochs:  # their look is taken when the second epoch begins
            model.eval()
            self.remember(losses_of(model, client), client.state)
            model.train()
            yield self.steps(client, client.epochs - first)

    def views(self) -> tuple[str, ...]:
        """a: x^w for the anchor too."""
        strong, *_ = views = super().views()
        return (strong, self.weak) if self.second_look and self.release == "a" else views

    def anchor(self, batch: Batch, client: Client) -> Guide:
        """a: f(x^w; w_g) of a new x^w in every step."""
        if not (self.second_look and self.release == "a"):
            return super().anchor(batch, client)
        with torch.no_grad():
            return Guide.of(client.received.features(batch.views[1]), self.temperature, self.lambda_r)

    # -- 8. no short batches, no rule for coinciding means -------------------------------------------
    def steps(self, client: Client, epochs: int) -> list[Step]:
        """Mini-batches; the short last one of an epoch is dropped, even if there is no other."""
        steps, size = client.steps(epochs=epochs), client.terms.batch_size
        if not self.unguarded:
            return steps
        return [Step(step.rows[:size]) for step in steps if len(step.rows) >= size]

    def clean_posterior(self, losses: Tensor) -> Tensor:
        """Any mixture is believed."""
        return clean_posterior(losses, least_gap=0.0) if self.unguarded else super().clean_posterior(losses)


def ramped_decay(n: int, highest: float) -> float:
    """What a teacher keeps at the n-th update of its life: nothing at the first three, then 1 − 1/(n − 1)."""
    return 0.0 if n <= 3 else min(highest, 1 - 1 / (n - 1))
