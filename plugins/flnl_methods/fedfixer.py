"""FedFixer: the global model and a personal model of each visit choose clean samples for each other.

Ji, Zhu, Xi, Gadyatskaya, Song, Cai, Liu. "FedFixer: Mitigating Heterogeneous Label Noise in Federated
Learning". AAAI 2024, pp. 12830-12838. Follows the authors' code, because the paper's equations could not be
read; docs/methods.md lists the choices.

Symbols: w the client's copy of the global model, θ personal model, K_w / K_θ the samples that they keep,
η learning rate, λ weight of the tie between w and θ, μ weight decay of θ, K personal steps per mini-batch,
β weight of the confidence regulariser, T last round in which everything is kept, n̄_k samples kept for w.

Where nothing is kept, the loss of that mini-batch is zero; the tie, the pull and the decay still act.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Method,
    NotNegative,
    Positive,
    Range,
    Server,
    State,
    Step,
    Terms,
    Update,
    Weights,
    network_weights,
)
from flnl_bench.numerics import (
    average,
    confidence_weight,
    is_finite,
    mean_class_loss,
    mean_of_kept,
    sieve_rounds,
)


class FedFixer(Method):
    """Two models train on each other's selection; w is pulled to θ, a new copy at every visit."""

    name = "fedfixer"
    version = 2
    reference = "Ji et al., FedFixer: Mitigating Heterogeneous Label Noise in Federated Learning, AAAI 2024"
    variants = {
        "released": {"begin": 10, "tolerance": 0.0, "plain_sgd": True, "forward_each_step": True},
    }

    beta: NotNegative = 2.0  # β at the end of its ramp
    distance: NotNegative = 15.0  # λ
    personal_steps: Annotated[int, Range(1)] = 5  # K
    personal_decay: NotNegative = 0.001  # μ
    personal_lr: Positive = 1.0  # × η: the rate of θ and of the SGD of w; the pull has η
    begin: Annotated[int, Range(1)] | None = None  # T; None: a fifth of the rounds, at least 3, at most 10
    tolerance: NotNegative = 1e-6  # of the sieve, which otherwise drops equal logits by rounding
    selection: Literal["step", "batch"] = "step"  # K_θ for w: of the last personal step, or of the first
    personal: Literal["visit", "kept"] = "visit"  # θ: a copy of the received w, or from the visit before
    pull: bool = True  # of w to θ
    plain_sgd: bool = False  # the SGD of w has no momentum and no weight decay, whatever the protocol has
    forward_each_step: bool = False  # w sees a batch K times, which moves its BatchNorm statistics K times

    # -- schedule ----------------------------------------------------------------------------------
    def last_whole_round(self, terms: Terms) -> int:
        """T; not a share of long runs, in which both models would learn the noise."""
        return sieve_rounds(self.begin, terms)

    def warmup(self, terms: Terms) -> int:
        """T + 1 rounds keep everything."""
        return self.last_whole_round(terms) + 1

    def beta_of(self, epoch: int, terms: Terms) -> float:
        """β in a local epoch, counted from the first round: linear from round T / 5 on, for T rounds."""
        return self.beta * confidence_weight(epoch, self.last_whole_round(terms), terms.epochs)

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """All epochs, each with its β."""
        first = client.round * client.epochs
        yield [
            dataclasses.replace(step, note={"beta": self.beta_of(first + i, client.terms)})
            for i in range(client.epochs)
            for step in client.steps(epochs=1)
        ]

    # -- a round on a client -----------------------------------------------------------------------
    def on_receive(self, model: nn.Module, client: Client) -> None:
        """θ = w, with its BatchNorm statistics, and a clean sheet for what the two models keep."""
        theta, device = copy.deepcopy(model).train(), client.y.device
        if "personal" in client.state:
            theta.load_state_dict(client.state["personal"], strict=False)
        client.scratch.update(
            theta=theta,
            weights=(trained(theta), trained(model)),
            count=torch.zeros((), dtype=torch.long, device=device),  # Σ |K_θ|
        )
        # Only the recorder reads these two.
        client.state["kept"] = torch.ones(client.size, 2, dtype=torch.bool, device=device)
        client.state["judged"] = client.round >= self.warmup(client.terms)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """K steps of θ on K_w, then the loss of w on K_θ; both models see the same augmented images."""
        x, y, beta, scratch = batch.x, batch.y, batch.note["beta"], client.scratch
        theta, (weights, anchor) = scratch["theta"], scratch["weights"]
        rate = client.terms.lr / (1 + beta)  # η'
        losses_w, k_w = self.judge(model(x), y, beta, client)
        share = k_w.to(losses_w.dtype) / k_w.sum().clamp_min(1)  # of a sample in the mean over K_w
        for step in range(self.personal_steps):
            if step and self.forward_each_step:
                with torch.no_grad():
                    model(x)
            losses_theta, kept = self.judge(theta(x), y, beta, client)
            if step == 0 or self.selection == "step":
                k_theta = kept
            gradients = torch.autograd.grad(losses_theta, weights, share, materialize_grads=True)
            own = self.personal_lr * rate
            tied_step(weights, anchor, gradients, own, self.distance, self.personal_decay)
        client.state["kept"][batch.index] = torch.stack((k_w, k_theta), dim=1)
        scratch["count"] += k_theta.sum()
        if self.pull:  # added by `on_step`, because the gradient of w is that before the pull
            with torch.no_grad():
                scratch["pull"] = torch._foreach_sub(weights, anchor)  # θ − w
            scratch["strength"] = self.distance * rate
        if self.plain_sgd:
            held = torch.ones((), device=y.device)
            client.held.update({name.split(".")[0]: held for name, _ in model.named_parameters()})
        # The engine's step has the rate η; of a loss divided by 1 + β it is a step with η'.
        losses: Tensor = mean_of_kept(losses_w, k_theta) * (self.personal_lr / (1 + beta))
        return losses

    def judge(self, logits: Tensor, y: Tensor, beta: float, client: Client) -> tuple[Tensor, Tensor]:
        """The losses CE(z, y) − β·s(z) [B], and whether each label is kept [B], by CE(z, y) ≤ s(z)."""
        given, anyone = F.cross_entropy(logits, y, reduction="none"), mean_class_loss(logits)
        kept = torch.ones_like(y, dtype=torch.bool)
        if client.round >= self.warmup(client.terms):
            kept = (given - anyone).detach() <= self.tolerance
        return torch.sub(given, anyone, alpha=beta), kept

    @torch.no_grad()
    def on_step(self, model: nn.Module, client: Client) -> None:
        """w ← w − λη'(w − θ), with w and θ as they were before the step of w."""
        _, w = client.scratch["weights"]
        if self.plain_sgd:
            moves = [(weight, weight.grad) for weight in w if weight.grad is not None]
            torch._foreach_add_([w for w, _ in moves], [g for _, g in moves], alpha=-client.terms.lr)
        if self.pull:
            torch._foreach_add_(w, client.scratch["pull"], alpha=client.scratch["strength"])

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """n̄_k, the mean of the local epochs."""
        if self.personal == "kept":
            client.state["personal"] = network_weights(client.scratch["theta"])
        return {"kept": client.scratch["count"].item() / client.epochs}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """Σ n̄_k·w_k / Σ n̄_k of the finite models; where no client kept anything, w stays."""
        counted = [u for u in updates if u.message["kept"] > 0 and is_finite(u.weights)]
        if not counted:
            return server.weights
        return average([u.weights for u in counted], [u.message["kept"] for u in counted])

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Clean is what w was trained on in the last epoch of the client's last round after the warm-up."""
        if not state["judged"]:
            return Beliefs()
        by_global, by_personal = state["kept"].float().mean(0).tolist()
        numbers = {"kept_by_global": by_global, "kept_by_personal": by_personal}
        return Beliefs(clean=state["kept"][:, 1], numbers=numbers)


def trained(model: nn.Module) -> list[Tensor]:
    """The parameters that have a gradient."""
    return [weight for weight in model.parameters() if weight.requires_grad]


@torch.no_grad()
def tied_step(
    weights: list[Tensor],
    anchor: list[Tensor],
    gradients: tuple[Tensor, ...],
    rate: float,
    distance: float,
    decay: float,
) -> None:
    """In place, θ ← θ − rate·(g + λ(θ − w) + μθ)."""
    torch._foreach_mul_(weights, 1 - rate * (distance + decay))
    torch._foreach_add_(weights, anchor, alpha=rate * distance)
    torch._foreach_add_(weights, gradients, alpha=-rate)
