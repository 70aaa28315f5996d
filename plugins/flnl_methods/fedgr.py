"""FedGR: the global model sieves and refines labels, revises local teachers and anchors features.

"Learning Locally, Revising Globally: Global Reviser for Federated Learning with Noisy Labels".
ICML 2026. The global model memorises wrong labels slowly, so its losses tell clean from noisy
samples, its confident predictions replace wrong labels, and it corrects each client's EMA teacher.

By the paper's equations. Its tables come from its authors' code, which differs from them in eight points:
`fedgr/released`, in fedgr_released.py.

Symbols: t round, α warm-up rounds, ŷ given label, q clean posterior, r_k noise ratio of client k,
x^w / x^s weakly / strongly augmented image, w_g global model, f features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Federation,
    Method,
    Model,
    NotNegative,
    Positive,
    Server,
    Share,
    State,
    Terms,
    Update,
    Weights,
    copy_weights,
    mix_into,
    network_weights,
)
from flnl_bench.numerics import clients_in_turn, loss_mixture, soft_cross_entropy

FLOOR = 5e-4  # added to the variances of the mixture


class FedGR(Method):
    """Sieve, refine, revise, regularise."""

    name = "fedgr"
    reference = "Learning Locally, Revising Globally: Global Reviser for F-LNL, ICML 2026"
    version = 2  # D^r_k accumulates
    variants = {
        "released": "flnl_methods.fedgr_released:FedGRReleased",
        "no-sieve": {"sieve": "local"},
        "no-refine": {"refine": False},
        "no-repreg": {"lambda_r": 0.0},
        "no-ema": {"lambda_b": 0.0},
        "no-weak": {"weak_aug": False},
        "no-strong": {"strong_aug": False},
        "online-ema": {"teacher": "online"},
        "replacement": {"warmup_sampling": "with"},
    }

    warmup_share: Share = 0.2  # α as a share of all rounds; at least one visit of every client
    lambda_b: NotNegative = 1.0  # λ_B, weight of distillation from the EMA teacher
    lambda_r: NotNegative = 0.1  # λ_R, weight of the representation regulariser
    gamma_g: Share = 0.9  # γ_g, what the teacher keeps when it is revised by the global model
    gamma_l: Share = 0.99  # γ_l, what the teacher keeps at every local step
    temperature: Positive = 0.5  # τ
    confidence: Share = 0.9  # ε, from which a prediction becomes a pseudo label
    noisy_client: Share = 0.8  # β, noise ratio from which a client's own labels are not used
    coverage: Share = 0.5  # μ, share of usable samples below which a noisy client's teacher is replaced
    sieve: Literal["federated", "local"] = "federated"
    refine: bool = True
    weak_aug: bool = True
    strong_aug: bool = True
    teacher: Literal["revised", "online"] = "revised"
    warmup_sampling: Literal["without", "with"] = "without"  # replacement
    # The paper's equation keeps pseudo labels only; its authors' earlier code also labels judged clean.
    high_noise_labels: Literal["pseudo", "pseudo+clean"] = "pseudo"

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """α, the number of warm-up rounds."""
        return max(round(self.warmup_share * terms.rounds), terms.rounds_for_all)

    def sample(self, server: Server) -> list[int]:
        """In the warm-up all clients in turn; then uniform draws."""
        if server.round >= self.warmup(server.terms) or self.warmup_sampling == "with":
            return super().sample(server)
        return clients_in_turn(server, "warm-up")

    def views(self) -> tuple[str, ...]:
        """x^s; and x^w where the teacher sees every batch."""
        strong = "strong" if self.strong_aug else "plain"
        return (strong, self.weak) if self.teacher == "online" else (strong,)

    @property
    def weak(self) -> str:
        """The name of the view x^w."""
        return "weak" if self.weak_aug else "plain"

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The newest mean losses, clean posteriors and noise ratios, by client."""
        return {"losses": {}, "clean_probability": {}, "noise_ratio": {}}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg, then one mixture over the losses of the round's clients."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        if updates and self.sieve == "federated":
            self.sieve_round(server, updates)
        return {}

    def sieve_round(self, server: Server, updates: Sequence[Update]) -> None:
        """Federated sieving: q of every sample of the round and r_k of every client."""
        losses = [update.message["losses"] for update in updates]
        posterior = torch.split(self.clean_posterior(torch.cat(losses)), [len(x) for x in losses])
        for update, loss, q in zip(updates, losses, posterior, strict=True):
            server.state["losses"][update.client] = loss
            server.state["clean_probability"][update.client] = q
            server.state["noise_ratio"][update.client] = noise_ratio(q)

    def clean_posterior(self, losses: Tensor) -> Tensor:
        """q of losses that are judged together."""
        return clean_posterior(losses)

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """What the server knows of the client's own samples; nothing before its first visit."""
        q = server.state["clean_probability"].get(client_id)
        if q is None:
            return {}
        ratio = server.state["noise_ratio"][client_id]
        return {"clean_probability": q, "clean": q >= 0.5, "noise_ratio": ratio}

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """Running mean of the losses, labels found so far, what could be trained on, the teacher."""
        return {
            "visits": 0,  # T_k
            "mean_loss": torch.zeros(client.size, device=client.y.device),
            "pseudo": torch.full_like(client.y, -1),
            "usable": torch.zeros_like(client.y, dtype=torch.bool),  # D^r_k
            "teacher": {},
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """One look at the own data with the global model, then refine labels and revise the teacher."""
        received, state, scratch = client.received, client.state, client.scratch

        # Features and pseudo labels from x^w; the sieve's losses from the plain image, in a second pass.
        features, logits = client.map(lambda batch: received.both(batch.x), views=(self.weak,))
        if self.sieve == "federated":
            self.remember(losses_of(received, client), state)
        revising = client.round >= self.warmup(client.terms)
        q, clean, ratio = read_judgement(client.inbox or state.get("judged"), client.y)
        if revising:
            self.grow_store(state, logits, client.y, clean, ratio)
            share, labels = self.refine_labels(q, clean, ratio, state["pseudo"])
        else:
            share, labels = torch.ones_like(q), state["pseudo"]
        self.revise_teacher(client, ratio, revising)
        teacher = client.bind(state["teacher"])
        given, guess = (one_hot_or_zero(y, client.terms.classes) for y in (client.y, labels))
        target = blend(share.unsqueeze(1), given, guess)
        scratch.update(teacher=teacher, follow=following(state["teacher"], network_weights(model)))
        scratch.update(share=share.unsqueeze(1), given=given, guess=guess, target=target)
        scratch["anchor"] = Guide.of(features, self.temperature, self.lambda_r)
        if self.lambda_b and self.teacher == "revised":
            once = client.map(lambda batch: teacher(batch.x), views=(self.weak,))
            scratch["guide"] = Guide.of(once, self.temperature, self.lambda_b)
        state["labels"] = torch.where(target.sum(1) > 0, target.argmax(1), -1)

    def remember(self, loss: Tensor, state: State) -> None:
        """The running mean ℓ̄ over the visits of this client."""
        state["visits"] += 1
        state["mean_loss"] = state["mean_loss"] + (loss - state["mean_loss"]) / state["visits"]

    def grow_store(self, state: State, logits: Tensor, y: Tensor, clean: Tensor, ratio: float) -> None:
        """Confident predictions enter the store; what it has stays, and so does D^r_k."""
        if self.refine:
            state["pseudo"] = newest_pseudo_labels(logits, self.confidence, state["pseudo"])
        state["usable"] = state["usable"] | clean | (state["pseudo"] >= 0)

    def refine_labels(self, q: Tensor, clean: Tensor, ratio: float, pseudo: Tensor) -> tuple[Tensor, Tensor]:
        """Label refining: what share of a sample's label is the given one [n], and the other label [n].

        A sample whose other label is -1 has only that share of a loss.
        """
        if not self.refine:
            return clean.to(q.dtype), torch.full_like(pseudo, -1)
        if self.is_noisy_client(ratio):
            keep = self.high_noise_labels == "pseudo+clean"
            return (clean.to(q.dtype) if keep else torch.zeros_like(q)), pseudo
        return torch.where(clean, 1.0, q), pseudo

    def is_noisy_client(self, ratio: float) -> bool:
        """r_k ≥ β: the client's own labels are not used."""
        return ratio >= self.noisy_client

    def is_astray(self, client: Client, ratio: float) -> bool:
        """r_k ≥ β and |D^r_k| / n_k < μ: the client's teacher is not trusted."""
        usable = client.state["usable"].sum().item() / client.size
        return ratio >= self.noisy_client and usable < self.coverage

    def revise_teacher(self, client: Client, ratio: float, revising: bool) -> None:
        """w_ema ← γ_g·w_ema + (1 − γ_g)·w_g; w_g whole where the teacher cannot be trusted."""
        state, w_g = client.state, network_weights(client.received)
        replace = not revising or not state["teacher"] or self.is_astray(client, ratio)
        if replace:
            state["teacher"] = copy_weights(w_g)
        else:
            mix_into(state["teacher"], w_g, self.gamma_g)
        state["replaced"] = float(replace)

    def loss(self, model: Model, batch: Batch, client: Client) -> Tensor:
        """L^SR + λ_B·B + λ_R·R."""
        features, logits = model.both(batch.x)
        total = soft_cross_entropy(logits, self.target(batch, client.scratch))
        if self.lambda_b and client.round >= self.warmup(client.terms):  # B, zero in the warm-up
            total = total + self.guide(batch, client).divergence(logits, self.temperature)
        if self.lambda_r:  # R, from round 0 on
            total = total + self.anchor(batch, client).divergence(features, self.temperature)
        return total

    def target(self, batch: Batch, scratch: Mapping[str, Any]) -> Tensor:
        """The soft labels [B, C] of a mini-batch."""
        labels: Tensor = scratch["target"].index_select(0, batch.index)
        return labels

    def guide(self, batch: Batch, client: Client) -> Guide:
        """p^le of x^w: computed once per round, or by the teacher of the current step."""
        if self.teacher == "revised":
            once: Guide = client.scratch["guide"].at(batch.index)
            return once
        with torch.no_grad():
            return Guide.of(client.scratch["teacher"](batch.views[1]), self.temperature, self.lambda_b)

    def anchor(self, batch: Batch, client: Client) -> Guide:
        """f(x^w; w_g)."""
        once: Guide = client.scratch["anchor"].at(batch.index)
        return once

    def on_step(self, model: nn.Module, client: Client) -> None:
        """w_ema ← γ_l·w_ema + (1 − γ_l)·w_k: between two revisions the teacher follows the local model."""
        follow(client, self.gamma_l)

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """Ids and mean losses; nothing where the client sieves alone."""
        state = client.state
        if self.sieve == "federated":
            return {"ids": torch.arange(client.size, dtype=torch.int32), "losses": state["mean_loss"]}
        self.remember(losses_of(model, client), state)
        q = self.clean_posterior(state["mean_loss"].cpu())
        state["judged"] = {"clean_probability": q, "clean": q >= 0.5, "noise_ratio": noise_ratio(q)}
        return {}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """What server and client think of the client's labels."""
        judged = self.inbox(server, client_id) or state.get("judged", {})
        return Beliefs(
            clean=judged.get("clean"),
            clean_probability=judged.get("clean_probability"),
            noise_ratio=judged.get("noise_ratio"),
            labels=state["labels"],
            pseudo_labels=state["pseudo"],
            numbers={"teacher_replaced": state["replaced"]},
            losses=state["mean_loss"],
        )


def losses_of(model: Model, client: Client) -> Tensor:
    """A model's loss on each plain image of a client, by the given label."""
    losses: Tensor = client.map(lambda batch: F.cross_entropy(model(batch.x), batch.y, reduction="none"))
    return losses


def clean_posterior(losses: Tensor, least_gap: float = math.sqrt(FLOOR)) -> Tensor:
    """q: posterior of the low-loss component; all clean where no two components can be told apart.

    No component is narrower than √FLOOR: means that are closer than that belong to one group.
    """
    fit = loss_mixture(losses.numpy(), max_iter=50, tol=1e-2, reg_covar=FLOOR)
    if fit is None or fit.means[1] - fit.means[0] < least_gap:
        return torch.ones(len(losses))
    return torch.from_numpy(fit.clean_probability).to(torch.get_default_dtype())


def noise_ratio(q: Tensor) -> float:
    """r_k, the share judged noisy."""
    return float(np.mean(q.numpy() < 0.5))


def read_judgement(judged: Mapping[str, Any] | None, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """q, clean flags and r_k; all clean before the first judgement."""
    if not judged:
        return torch.ones(len(y), device=y.device), torch.ones_like(y, dtype=torch.bool), 0.0
    return judged["clean_probability"], judged["clean"], judged["noise_ratio"]


def newest_pseudo_labels(logits: Tensor, confidence: float, store: Tensor) -> Tensor:
    """Confident predictions replace what the store has; the rest of it stays."""
    top, guess = logits.softmax(1).max(1)
    return torch.where(top > confidence, guess, store)


class Guide(NamedTuple):
    """Predictions p = softmax(logits/τ) that are followed with a weight λ."""

    p: Tensor  # λ·p [n, C]
    information: Tensor  # λ·Σ_c p·ln p [n]

    @classmethod
    def of(cls, logits: Tensor, temperature: float, weight: float) -> Guide:
        """From logits or features."""
        log_p = F.log_softmax(logits / temperature, dim=1)  # p·ln p is 0, not NaN, where p underflows
        p = weight * log_p.exp()
        return cls(p, (p * log_p).sum(1))

    def at(self, rows: Tensor) -> Guide:
        """The part of some rows."""
        return Guide(self.p.index_select(0, rows), self.information.index_select(0, rows))

    def divergence(self, student: Tensor, temperature: float) -> Tensor:
        """λ·KL(p ‖ softmax(student/τ)) per example, without a τ² factor."""
        return self.information + soft_cross_entropy(student / temperature, self.p)


def following(teacher: Weights, live: Weights) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of a teacher, and those that it follows, listed once for all steps of a round."""
    return list(teacher.values()), [live[name] for name in teacher]


@torch.no_grad()
def follow(client: Client, keep: float) -> None:
    """In place, w_ema ← keep·w_ema + (1 − keep)·w_k, as `mix_into`."""
    teacher, live = client.scratch["follow"]
    torch._foreach_lerp_(teacher, live, 1 - keep)


def one_hot_or_zero(labels: Tensor, classes: int) -> Tensor:
    """One-hot rows; zeros for the label -1."""
    return F.one_hot(labels + 1, classes + 1)[:, 1:].to(torch.get_default_dtype())


def blend(share: Tensor, given: Tensor, guess: Tensor) -> Tensor:
    """Soft targets [n, C]; a row of zeros has no label and no loss."""
    return share * given + (1 - share) * guess
