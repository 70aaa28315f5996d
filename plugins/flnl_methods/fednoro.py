"""FedNoRo: find noisy clients by their losses per class, distil on them, trust far models less.

Wu, Yu, Jiang, Cheng, Yan. "FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class
Imbalance and Label Noise Heterogeneity". IJCAI 2023. Follows the authors' code; where it does not, and
what is unconfirmed: docs/methods.md.

Two stages: (1) T1 rounds with logit-adjusted cross-entropy, then one split of all clients by a
mixture over their mean losses per class, never revised; (2) clean clients train as before, noisy ones
distil from the global model, and their models count less the farther they are from clean ones.

Symbols: t round, T all rounds, n_kc samples of client k with given label c, z logits, λ_t weight of
distillation, b and e its first and last ramp-up round, A mean losses [K, C], D_k distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

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
    Range,
    Server,
    Share,
    State,
    Terms,
    Update,
    Weights,
)
from flnl_bench.noisy_clients import (
    Distance,
    class_losses,
    class_profiles,
    detected,
    distance_aware_average,
    rounds_before_detection,
    vote,
)
from flnl_bench.numerics import Covariance, class_counts, log_prior


class FedNoRo(Method):
    """Logit adjustment, one detection of noisy clients, distillation, distance-aware aggregation."""

    name = "fednoro"
    reference = "Wu et al., FedNoRo: Towards Noise-Robust Federated Learning, IJCAI 2023"

    warmup_share: Share = 0.2  # T1 as a share of all rounds; at least 5 and a visit of most clients
    lambda_max: Share = 0.8  # a, weight of distillation after the ramp-up
    ramp_sharpness: NotNegative = 5.0
    temperature: Positive = 0.8  # of the teacher alone
    tau: NotNegative = 1.0  # τ, strength of the logit adjustment
    fits: Annotated[int, Range(1, 1000)] = 9  # mixtures that vote, with the seeds 0, 1, …
    gmm_cov: Covariance = "full"
    min_count: Annotated[int, Range(1)] = 1  # n_kc from which a class loss may set its column's range
    dist: Distance = "tensorsum"
    eval_aug: Literal["plain", "weak"] = "plain"  # the authors' code detects on augmented images

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T1; at most half of the rounds."""
        return rounds_before_detection(self.warmup_share, terms)

    def ramp_end(self, terms: Terms) -> int:
        """e, the round from which λ_t is a: the last of the first half, if the warm-up leaves it time."""
        return max(terms.rounds // 2 - 1, self.warmup(terms) + 1)

    def distillation(self, terms: Terms, t: int) -> float:
        """λ_t of a round of stage 2."""
        shape = ramp(t, self.warmup(terms), self.ramp_end(terms), self.ramp_sharpness)
        return self.lambda_max * shape

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The noisy clients; None until they are looked for."""
        return {"noisy": None}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """A round of either stage; the last of the warm-up ends with the detection."""
        super().round(server, federation)
        if server.round == self.warmup(server.terms) - 1:
            return self.detect(server, federation)
        return {}

    def detect(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """Ask every client for its class losses and split the clients, once."""
        clients = range(server.terms.clients)
        answers = federation.visit(clients, self.class_losses)
        losses = np.stack([answers[k]["losses"].numpy() for k in clients])  # A [K, C]
        trusted = np.ones_like(losses, dtype=bool)
        if self.min_count > 1:
            trusted = np.stack([answers[k]["counts"].numpy() for k in clients]) >= self.min_count
        split = vote(class_profiles(losses, trusted), self.fits, self.gmm_cov)
        server.state["noisy"], numbers = detected(split, len(clients))
        return numbers

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """Stage 2: whether the client is noisy, and λ_t."""
        t, noisy = server.round, server.state["noisy"]
        if noisy is None or t < self.warmup(server.terms):
            return {}
        return {"noisy": client_id in noisy, "distillation": self.distillation(server.terms, t)}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """DaAgg among the clients of the round; FedAvg where there are not both kinds of clients."""
        return distance_aware_average(updates, set(server.state["noisy"] or []), self.dist) or server.weights

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """The class counts n_kc of the labels that are trained on."""
        return {"counts": class_counts(client.y, client.terms.classes)}

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """What LA adds to the logits, in training only: teacher, detection and test have the raw ones."""
        client.scratch["adjustment"] = log_prior(client.state["counts"], self.tau)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """LA; on noisy clients blended with distillation from the global model."""
        adjustment = client.scratch["adjustment"]
        logits = model(batch.x)
        if not client.inbox.get("noisy", False):
            return F.cross_entropy(logits + adjustment, batch.y, reduction="none")
        # Not once a round, as FedGR has it: the teacher looks at the augmented image that the student sees.
        with torch.no_grad():
            guide = (client.received(batch.x) / self.temperature).softmax(1)
        return distilled(logits, batch.y, adjustment, guide, client.inbox["distillation"])

    def class_losses(self, client: Client) -> Mapping[str, Any]:
        """A[k, ·]: mean plain cross-entropy of the global model for each given label, NaN if absent."""
        counts = client.state["counts"]
        answer = {"losses": class_losses(client, counts, self.eval_aug)}
        return {**answer, "counts": counts.int()} if self.min_count > 1 else answer

    # -- for the recorder alone --------------------------------------------------------------------
    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """It judges clients, not samples; a split that failed judges nobody."""
        noisy = server.state["noisy"]
        return Beliefs(noisy_client=client_id in noisy if noisy else None)


# -- training ------------------------------------------------------------------------------------------
def distilled(logits: Tensor, y: Tensor, adjustment: Tensor, guide: Tensor, weight: float) -> Tensor:
    """λ·KL(guide ‖ student) + (1 − λ)·LA per example.

    Absent classes count with a log-probability of 0, so the divergence may be negative.
    """
    log_p = F.log_softmax(logits + adjustment, dim=1)
    log_p = torch.where(adjustment.isinf(), 0.0, log_p)
    divergence = (torch.xlogy(guide, guide) - guide * log_p).sum(1)
    return weight * divergence + (1 - weight) * F.nll_loss(log_p, y, reduction="none")


def ramp(t: int, begin: int, end: int, sharpness: float = 5.0) -> float:
    """exp(−5·(1 − progress)²) from `begin` to `end`; 1 where there is no time for a ramp."""
    if end <= begin:
        return 1.0
    phase = 1.0 - (min(max(t, begin), end) - begin) / (end - begin)
    return math.exp(-sharpness * phase**2)
