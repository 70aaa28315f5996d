"""FedELC: noisy clients, found once as FedNoRo does, learn a soft label for each of their samples.

Jiang, Sun, Li, Xue, Li, Wu, Xu, Wang, Liu. "Tackling Noisy Clients in Federated Learning with End-to-end
Label Correction". CIKM 2024. Ancestor: Yi, Wu. "Probabilistic End-to-end Noise Correction for Learning
with Noisy Labels" (PENCIL). CVPR 2019.

Stage 1 and the detection are FedNoRo's. Then clean clients train as before; on noisy ones label logits
are moved by gradient descent together with the network, and averaged with its predictions at the end of a
visit. Only that average can change which class is the largest: descent alone leaves 5/6 of the mass on
the given label (10 classes).

Follows the authors' code; choices, and what is unconfirmed: docs/methods.md.

Symbols: t round, T1 rounds of stage 1, ỹ label logits, y^d = softmax(ỹ), K their scale, η_y their step, p
prediction, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
    NotNegative,
    Positive,
    Server,
    Share,
    State,
    Terms,
    Update,
    Weights,
    mix_into,
    network_weights,
)
from flnl_bench.noisy_clients import (
    class_losses,
    class_profiles,
    detected,
    distance_aware_average,
    rounds_before_detection,
    vote,
)
from flnl_bench.numerics import (
    class_counts,
    combined,
    entropy,
    geometric_median,
    is_finite,
    kept_count,
    kl_divergence,
    log_prior,
    small_loss,
)


class FedELC(Method):
    """FedNoRo's detection, then soft labels that are learnt (from the code; the paper is unconfirmed)."""

    name = "fedelc"
    reference = "Jiang et al., Tackling Noisy Clients with End-to-end Label Correction, CIKM 2024"
    variants = {  # MaskedOptim (Jiang et al., arXiv 2506.02079, 2025)
        "masked": {"trusted": 0.8, "blend": 0.2, "aggregator": "rfa", "warmup_share": 0.25, "beta": 0.1}
    }

    warmup_share: Share = 0.2  # T1 as a share of all rounds; at least 5 and a visit of most clients
    scale: Positive = 10.0  # K
    label_step: NotNegative = 15.625  # η_y
    alpha: NotNegative = 0.5  # α, weight of the given label
    beta: NotNegative = 0.2  # β, weight of the entropy
    per_class: bool = True  # divergence and entropy are means over the classes, not sums
    trusted: Share = 1.0  # share of a batch, the smallest losses, that is pulled to the given labels
    blend: Share = 0.0  # share of the received model in what a noisy client uploads
    aggregator: Literal["distance-aware", "rfa"] = "distance-aware"

    # -- a round on the server ---------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T1, as in FedNoRo: at most half of the rounds."""
        return rounds_before_detection(self.warmup_share, terms)

    def server_state(self, server: Server) -> State:
        """The noisy clients; None until they are looked for."""
        return {"noisy": None}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """A round of either stage; the last of stage 1 ends with the detection."""
        super().round(server, federation)
        if server.round != self.warmup(server.terms) - 1:
            return {}
        clients = range(server.terms.clients)
        answers = federation.visit(clients, self.class_losses)
        losses = np.stack([answers[k]["losses"].numpy() for k in clients])  # [K, C]
        server.state["noisy"], numbers = detected(vote(class_profiles(losses)), len(clients))
        return numbers

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """Stage 2: whether the client is noisy."""
        noisy = server.state["noisy"]
        return {} if noisy is None else {"noisy": client_id in noisy}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """FedNoRo's DaAgg among the clients of the round, or the geometric median of their models."""
        if self.aggregator == "rfa":
            return combined(updates, geometric_median, server.weights)
        return distance_aware_average(updates, set(server.state["noisy"] or [])) or server.weights

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """The given labels and their counts; ỹ comes with the first visit as a noisy client."""
        return {"given": client.y, "counts": class_counts(client.y, client.terms.classes)}

    def class_losses(self, client: Client) -> Mapping[str, Any]:
        """What a client answers in the detection."""
        return {"losses": class_losses(client, client.state["counts"])}

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """The adjustment of the logits, or on a noisy client ỹ, which starts as K·onehot(y)."""
        if not client.inbox.get("noisy", False):
            client.scratch["adjustment"] = log_prior(client.state["counts"])
            return
        given = F.one_hot(client.y, client.terms.classes).to(torch.get_default_dtype())
        # A copy: what is kept changes only if the training ends well.
        client.scratch.update(given=given, labels=client.state.get("labels", self.scale * given).clone())

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Logit-adjusted cross-entropy; on noisy clients PENCIL's loss, and a step of ỹ."""
        logits = model(batch.x)
        if "adjustment" in client.scratch:
            return F.cross_entropy(logits + client.scratch["adjustment"], batch.y, reduction="none")
        labels, given = client.scratch["labels"][batch.index], client.scratch["given"][batch.index]
        trust = self.trust(logits.detach(), batch.y)
        client.scratch["labels"][batch.index] = self.moved(labels, logits.detach(), given, trust)
        return self.correction(logits, labels, batch.y, trust)

    def trust(self, logits: Tensor, y: Tensor) -> Tensor | float:
        """1 for the samples that are pulled to their given labels: the smallest losses of the batch."""
        if self.trusted == 1:
            return 1.0
        losses = F.cross_entropy(logits, y, reduction="none")
        return small_loss(losses, kept_count(len(y), 1 - self.trusted)).to(logits.dtype)

    def correction(self, logits: Tensor, labels: Tensor, y: Tensor, trust: Tensor | float = 1.0) -> Tensor:
        """KL(p ‖ y^d)/C − α·ln y^d_y + β·H(p)/C; the second term has no gradient in the network."""
        given = F.cross_entropy(labels, y, reduction="none")
        own = kl_divergence(logits, labels) + self.beta * entropy(logits)
        return own / self.divisor(logits) + self.alpha * trust * given

    def moved(self, labels: Tensor, logits: Tensor, given: Tensor, trust: Tensor | float = 1.0) -> Tensor:
        """ỹ − η_y·((y^d − p)/C + α·(y^d − onehot(y))): one step of gradient descent, p held."""
        soft, p = labels.softmax(1), logits.softmax(1)
        trust = trust.unsqueeze(1) if isinstance(trust, Tensor) else trust
        slope = (soft - p) / self.divisor(logits) + self.alpha * trust * (soft - given)
        return labels - self.label_step * slope

    def divisor(self, logits: Tensor) -> int:
        """C, or 1."""
        return logits.shape[1] if self.per_class else 1

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """Nothing; a noisy client averages its soft labels with what the trained network says."""
        if "labels" in client.scratch and is_finite(network_weights(model)):
            p = client.map(lambda batch: model(batch.x).softmax(1))
            client.state["labels"] = self.merged(client.scratch["labels"], p)
            if self.blend:
                mix_into(network_weights(model), network_weights(client.received), 1 - self.blend)
        return {}

    def merged(self, labels: Tensor, p: Tensor) -> Tensor:
        """K·½(y^d + p): logits that are K times a probability, as they were in the beginning."""
        return self.scale * (labels.softmax(1) + p) / 2

    # -- for the recorder alone --------------------------------------------------------------------
    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Labels are the largest of ỹ on noisy clients and the given ones on others; none before a split."""
        noisy, given = server.state["noisy"], state["given"]
        if not noisy:
            return Beliefs()
        if client_id not in noisy or "labels" not in state:
            return Beliefs(noisy_client=client_id in noisy, labels=given, clean=torch.ones_like(given).bool())
        labels = state["labels"].argmax(1)
        clean = labels == given
        numbers = {"labels_changed": 1 - clean.float().mean().item()}
        return Beliefs(noisy_client=True, labels=labels, clean=clean, numbers=numbers)
