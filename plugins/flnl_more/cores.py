"""CORES: a loss that makes the network confident, and a sieve that drops labels with more than a mean loss.

Cheng, Zhu, Li, Gong, Sun, Liu. "Learning with Instance-Dependent Label Noise: A Sample Sieve Approach". ICLR
2021, phase 1; in a federation as the baselines GlobalCORES and LocalCORES of FedFixer's authors.

Symbols: s(z) mean loss over all labels, β weight of the confidence regulariser, T_s last round in which
everything is kept, w sent network, θ_k private network, K_θ the samples that θ_k keeps.
Choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Method,
    NotNegative,
    Range,
    Server,
    State,
    Step,
    Terms,
    copy_weights,
    network_weights,
)
from flnl_bench.numerics import confidence_weight, mean_class_loss, mean_of_kept, sieve_rounds


class Cores(Method):
    """FedAvg with the confidence-regularised loss and the sieve of CORES² on each client."""

    name = "cores"
    reference = "Cheng et al., Learning with Instance-Dependent Label Noise: A Sample Sieve, ICLR 2021"
    variants = {"local": ":LocalCores"}

    beta: NotNegative = 2.0  # β at the end of its ramp
    begin: Annotated[int, Range(1)] | None = None  # T_s; None: a fifth of the rounds, at least 3, at most 10
    tolerance: NotNegative = 1e-6  # of the sieve, which otherwise drops equal logits by rounding
    prior: Literal["uniform", "labels"] = "uniform"  # of the classes in s(z) of the loss; not in the sieve

    def warmup(self, terms: Terms) -> int:
        """T_s + 1 rounds keep everything."""
        return sieve_rounds(self.begin, terms) + 1

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """All epochs, each with its β."""
        first, rounds = client.round * client.epochs, sieve_rounds(self.begin, client.terms)
        epochs = [
            [
                replace(step, note={"beta": self.beta * confidence_weight(first + i, rounds, client.epochs)})
                for step in client.steps(epochs=1)
            ]
            for i in range(client.epochs)
        ]
        if self.prior == "uniform":
            yield [step for epoch in epochs for step in epoch]
            return
        for epoch in epochs:
            client.scratch["prior"] = label_prior(client.y, client.state["kept"], client.terms.classes)
            yield epoch

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """A clean sheet for what is kept; only the recorder reads it."""
        client.state["kept"] = torch.ones_like(client.y, dtype=torch.bool)
        client.state["judged"] = client.round >= self.warmup(client.terms)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """CE(z, y) − β·s(z) of what is kept; divided by 1 + β, which is a smaller step."""
        losses, kept = self.judge(model(batch.x), batch, client)
        beta: float = batch.note["beta"]
        return mean_of_kept(losses, kept) / (1 + beta)

    def judge(self, logits: Tensor, batch: Batch, client: Client) -> tuple[Tensor, Tensor]:
        """The regularised losses [B], and what is kept: CE(z, y) ≤ s(z), everything until round T_s."""
        given, anyone = F.cross_entropy(logits, batch.y, reduction="none"), mean_class_loss(logits)
        kept = torch.ones_like(batch.y, dtype=torch.bool)
        if client.state["judged"]:
            kept = (given - anyone).detach() <= self.tolerance
        client.state["kept"][batch.index] = kept
        if self.prior == "labels":
            anyone = -(logits.softmax(1) + 1e-8).log() @ client.scratch["prior"]
        return torch.sub(given, anyone, alpha=batch.note["beta"]), kept

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Clean is what was kept in the last epoch of the client's last round after the warm-up."""
        if not state["judged"]:
            return Beliefs()
        return Beliefs(clean=state["kept"], numbers={"kept": state["kept"].float().mean().item()})


class LocalCores(Cores):
    """A private network of each client sieves for the sent one, and never hears of the others: a control."""

    private = ("personal",)

    def build(self, new_net: Callable[[], nn.Module]) -> nn.Module:
        """w, and a place for θ_k, which comes from the client."""
        net = new_net()
        return nn.ModuleDict({"shared": net, "personal": copy.deepcopy(net)})

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The sent network alone."""
        logits: Tensor = model.get_submodule("shared")(x)
        return logits

    def client_state(self, client: Client) -> State:
        """θ_k = w at the first visit."""
        return {"personal": copy_weights(network_weights(client.received.get_submodule("shared")))}

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The regularised loss of θ_k, and cross-entropy of w, both on K_θ."""
        shared, personal = model.children()
        losses, kept = self.judge(personal(batch.x), batch, client)
        plain = F.cross_entropy(shared(batch.x), batch.y, reduction="none")
        beta: float = batch.note["beta"]
        return mean_of_kept(losses, kept) / (1 + beta) + mean_of_kept(plain, kept)


def label_prior(y: Tensor, kept: Tensor, classes: int) -> Tensor:
    """Return the shares of classes among the kept labels [C]; uniform for fewer than two classes."""
    counts = (F.one_hot(y, classes) * kept.unsqueeze(1)).sum(0).to(torch.get_default_dtype())
    several = (counts > 0).sum() > 1
    return torch.where(several, counts / counts.sum().clamp_min(1), 1 / classes)
