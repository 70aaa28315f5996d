"""RoFL: server and clients share a centroid of features per class, which tells whose label to trust.

Yang, Park, Byun, Kim. "Robust Federated Learning with Noisy Labels". IEEE Intelligent Systems 2022. A
client keeps the small losses of each batch. Of these, samples whose nearest centroid is that of their
label are confident, keep the label and are pulled to the centroid; the others get the global model's
prediction as label.

There is no code of the authors: this follows an unofficial one. Differences, and what is unconfirmed:
docs/methods.md.

Symbols: t round, f^j and f_G^j centroid of class j on a client and on the server, φ features, S kept
samples, ŷ predicted and ỹ trained label, τ_t dropped share of a batch, T_k and T_pl rounds until τ and
until ỹ may differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Federation,
    Method,
    Model,
    NotNegative,
    Server,
    Share,
    State,
    Terms,
    Update,
    Weights,
)
from flnl_bench.numerics import (
    check_forget_rate,
    cosine,
    entropy,
    final_forget_rate,
    finite_updates,
    forget_rate,
    kept_count,
    linear_ramp,
    mean_of_kept,
    small_loss,
    warmup_rounds,
)

ZERO = 1e-8  # the length below which a centroid says nothing


class RoFL(Method):
    """Small losses, labels that centroids confirm (after an unofficial code; the paper is unconfirmed)."""

    name = "rofl"
    reference = "Yang et al., Robust Federated Learning with Noisy Labels, IEEE Intelligent Systems 2022"
    variants = {"constant": {"centroid": "constant"}}

    forget_rate: float | None = None  # τ; None is what the setting announces, φ·E[ρ], or 0.2
    ramp_share: Share = 0.2  # T_k as a share of all rounds; at least 3
    given_share: Share = 0.1  # T_pl as a share of all rounds; at least 3 and a visit of most clients
    centroid_weight: NotNegative = 1.0  # λ_cen
    entropy_weight: NotNegative = 0.8  # λ_e; try 0.4 if the accuracy stays low after T_pl
    centroid: Literal["mean", "sum", "constant"] = "mean"  # L_cen over S; constant: a sum without gradient

    # -- schedule ----------------------------------------------------------------------------------
    def final(self, terms: Terms) -> float | None:
        """τ as given or announced (None); 0.2 where natural noise announces nothing."""
        return 0.2 if self.forget_rate is None and math.isnan(terms.expected_noise) else self.forget_rate

    def forget(self, t: int, terms: Terms) -> float:
        """τ_t."""
        ramp = max(3, round(self.ramp_share * terms.rounds))
        return forget_rate(t, final_forget_rate(self.final(terms), terms), ramp)

    def warmup(self, terms: Terms) -> int:
        """T_pl, the rounds in which given labels are trained on."""
        return warmup_rounds(self.given_share, terms)

    # -- on the server -----------------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """No centroids yet; a negative τ is refused, a too high one is a warning."""
        check_forget_rate(self.final(server.terms), server.terms, self.name)
        return {"centroids": None}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg; τ_t is recorded."""
        super().round(server, federation)
        return {"forget_rate": self.forget(server.round, server.terms)}

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """f_G, once there is one."""
        centroids = server.state["centroids"]
        return {} if centroids is None else {"centroids": centroids}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The mean of the models by n_k, and of the centroids by their cosines; of those that are finite."""
        sound = [u.message["centroids"] for u in finite_updates(updates)]
        if sound:
            server.state["centroids"] = merged(server.state["centroids"], torch.stack(sound))  # of [m, C, d]
        return super().aggregate(server, updates)

    # -- on a client -------------------------------------------------------------------------------
    def on_receive(self, model: Model, client: Client) -> None:
        """Predicted labels and the first centroids, from one look with the received model."""
        features, logits = client.map(lambda batch: client.received.both(batch.x))
        given = F.one_hot(client.y, client.terms.classes).to(features.dtype)  # once: in a step it would wait
        centroids = client.inbox.get("centroids")
        if centroids is None:
            centroids, _ = class_means(features, given)
        forget = self.forget(client.round, client.terms)
        client.scratch.update(given=given, centroids=centroids, forget=forget)
        client.state["predicted"] = logits.argmax(1)
        client.state["clean"] = torch.zeros_like(client.y, dtype=torch.bool)  # of the last epoch, as is
        client.state["labels"] = client.y.clone()

    def loss(self, model: Model, batch: Batch, client: Client) -> Tensor:
        """L_c + λ_cen(t)·L_cen + λ_e·L_e over S; then the centroids move to the features of S."""
        features, logits = model.both(batch.x)
        y, fixed, centroids = batch.y, features.detach(), client.scratch["centroids"]
        count = kept_count(len(y), client.scratch["forget"])
        kept = small_loss(F.cross_entropy(logits, y, reduction="none"), count)
        confident = nearest(fixed, centroids) == y
        labels = y
        if client.round >= self.warmup(client.terms):
            labels = torch.where(confident, y, client.state["predicted"][batch.index])
        client.state["clean"][batch.index] = kept & confident
        client.state["labels"][batch.index] = torch.where(kept, labels, -1)
        losses = F.cross_entropy(logits, labels, reduction="none") + self.entropy_weight * entropy(logits)
        pulled = fixed if self.centroid == "constant" else features
        pull = torch.where(confident, (pulled - centroids[y]).square().sum(1), 0.0)
        losses = losses + self.pull_weight(client) * (1 if self.centroid == "mean" else count) * pull
        members = client.scratch["given"][batch.index] * kept.unsqueeze(1)
        client.scratch["centroids"] = moved(centroids, *class_means(fixed, members))
        return mean_of_kept(losses, kept)

    def pull_weight(self, client: Client) -> float:
        """λ_cen(t)."""
        return self.centroid_weight * linear_ramp(client.round, 0, self.warmup(client.terms))

    def upload(self, model: Model, client: Client) -> Mapping[str, Any]:
        """The client's centroids."""
        return {"centroids": client.scratch["centroids"]}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Clean is what was kept and confident in the last epoch."""
        return Beliefs(clean=state["clean"], labels=state["labels"], pseudo_labels=state["predicted"])


def class_means(features: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """The mean feature of each class [C, d] and its samples [C], from who is in it [B, C]; 0 if nobody is."""
    counts = members.sum(0)
    return members.T @ features / counts.clamp_min(1).unsqueeze(1), counts


def nearest(features: Tensor, centroids: Tensor) -> Tensor:
    """The class whose centroid has the largest cosine with each feature [B]."""
    return cosine(features.unsqueeze(1), centroids).argmax(1)


def moved(centroids: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """(1 − s²)·f + s²·f̂ with their cosine s; all of f̂ where f is zero, f where a class has no sample."""
    share = cosine(centroids, means).square()
    share = torch.where(torch.linalg.vector_norm(centroids, dim=1) < ZERO, 1.0, share)
    share = torch.where(counts > 0, share, 0.0).unsqueeze(1)
    return (1 - share) * centroids + share * means


def merged(before: Tensor | None, local: Tensor) -> Tensor:
    """f_G from the clients' centroids [m, C, d], weighted by their cosines with the one before, if above 0.

    A plain mean of those that are not zero at first, and where no cosine is above 0; no such one: as before.
    """
    held = (torch.linalg.vector_norm(local, dim=2) >= ZERO).to(local.dtype)  # [m, C]
    shares = held if before is None else cosine(local, before).clamp_min(0)
    shares = torch.where(shares.sum(0) > 0, shares, held)
    total = shares.sum(0).unsqueeze(1)  # [C, 1]
    mean = (shares.unsqueeze(2) * local).sum(0) / torch.where(total > 0, total, 1.0)
    return torch.where(total > 0, mean, torch.zeros_like(mean) if before is None else before)
