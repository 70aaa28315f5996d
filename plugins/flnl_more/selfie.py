"""FL-SELFIE: train on small losses, and on samples whose predictions have long agreed, inside FedAvg.

Song, Kim, Lee. "SELFIE: Refurbishing Unclean Samples for Robust Deep Learning". ICML 2019; histories and
refurbished labels on the clients as in FedRN's code base and FNBench. What is neither a small loss nor
refurbished is left out of the batch.

Symbols: t round, T1 warm-up rounds, τ assumed noise rate, 𝒞 small losses of a batch, h predictions of a
sample that are kept, q their number, F their uncertainty, ε its threshold, r refurbished labels (−1: none).

After the authors' code; choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Federation,
    Method,
    Range,
    Server,
    Share,
    State,
    Terms,
    Update,
    Weights,
    network_weights,
    require,
)
from flnl_bench.numerics import (
    AGGREGATORS,
    HIGHEST_FORGET_RATE,
    Aggregator,
    combined,
    history_length,
    is_finite,
    mean_of_kept,
    small_loss,
    warmup_rounds,
)

MEMORY = ("predictions", "seen", "refurbished")  # of a client


class Selfie(Method):
    """Small losses, and labels replaced where predictions agree (after the code; paper unconfirmed)."""

    name = "selfie"
    reference = "Song et al., SELFIE: Refurbishing Unclean Samples for Robust Deep Learning, ICML 2019"

    history: Annotated[int, Range(1)] = 15  # q at most; fewer where clients have not so many epochs before T1
    threshold: Annotated[float, Range(-1, 1)] = 0.05  # ε; below 0 nothing is refurbished
    noise_rate: Share | None = None  # τ; None is what the setting announces, 0.2 if it does not
    warmup_share: Share = 0.2  # T1 as a share of all rounds; at least 3, and a call of every client
    reuse: bool = True  # labels stay refurbished
    aggregator: Aggregator = "mean"

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T1, the rounds in which all samples are trained on."""
        return warmup_rounds(self.warmup_share, terms)

    def length(self, terms: Terms) -> int:
        """q."""
        return history_length(self.history, 5, self.warmup(terms), terms)

    def noise(self, terms: Terms) -> float:
        """τ, the same for all clients."""
        announced = 0.2 if math.isnan(terms.expected_noise) else terms.expected_noise
        return min(announced if self.noise_rate is None else self.noise_rate, HIGHEST_FORGET_RATE)

    def server_state(self, server: Server) -> State:
        """Nothing; but the uncertainty of predictions needs two classes."""
        require(
            server.terms.classes > 1, "the number of classes", server.terms.classes, "at least 2 for selfie"
        )
        return {}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg's; q is recorded, since a short history is a weak test."""
        super().round(server, federation)
        return {"history": self.length(server.terms)}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The models that are finite, made one, by full n_k."""
        return combined(updates, AGGREGATORS[self.aggregator], server.weights)

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """Empty histories, no refurbished labels."""
        room = client.y.new_zeros(client.size, self.length(client.terms), dtype=torch.int16)
        return {
            "predictions": room,
            "seen": torch.zeros_like(client.y),
            "refurbished": torch.full_like(client.y, -1),
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """A clean sheet for what is trained on, which only the recorder reads, and a copy of the memory."""
        client.scratch["before"] = {name: client.state[name].clone() for name in MEMORY}
        client.state["clean"] = torch.ones_like(client.y, dtype=torch.bool)
        client.state["labels"] = client.y.clone()
        client.state["judged"] = client.round >= self.warmup(client.terms)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The mean over small losses and refurbished samples; in the warm-up over all."""
        logits, state, rows = model(batch.x), client.state, batch.index
        loss = F.cross_entropy(logits, batch.y, reduction="none")
        if state["judged"]:
            clean = small_loss(loss, clean_count(len(loss), self.noise(client.terms)))
            renewed = self.refurbish(rows, client)
            used = clean | (renewed >= 0)
            labels = torch.where(renewed >= 0, renewed, batch.y)
            state["clean"][rows], state["labels"][rows] = clean, torch.where(used, labels, -1)
            loss = mean_of_kept(F.cross_entropy(logits, labels, reduction="none"), used)
        remember(logits.detach().argmax(1), rows, state)
        return loss

    def upload(self, model: nn.Module, client: Client) -> dict[str, Tensor]:
        """Nothing; but what a diverged model says is forgotten."""
        if not is_finite(network_weights(model)):
            client.state.update(client.scratch["before"])
        return {}

    def refurbish(self, rows: Tensor, client: Client) -> Tensor:
        """r of some rows, after a look at their histories."""
        state, classes = client.state, client.terms.classes
        predictions = state["predictions"][rows].long()  # [B, q]
        # Not one_hot, which looks at its input on the host.
        empty, one = predictions.new_zeros(len(rows), classes), torch.ones_like(predictions)
        votes = empty.scatter_add(1, predictions, one)
        complete = state["seen"][rows] >= predictions.shape[1]
        sure = complete & (uncertainty(votes) <= self.threshold)
        before = state["refurbished"][rows] if self.reuse else -1
        labels = torch.where(sure, votes.argmax(1), before)
        state["refurbished"][rows] = labels
        return labels

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Of the client's last epoch, once it had to choose: clean is a small loss."""
        if not state["judged"]:
            return Beliefs()
        renewed = state["refurbished"]
        numbers = {"refurbished": (renewed >= 0).float().mean().item()}
        return Beliefs(clean=state["clean"], labels=state["labels"], pseudo_labels=renewed, numbers=numbers)


def clean_count(size: int, noise: float) -> int:
    """|𝒞| = ⌈b·(1 − τ)⌉; Co-teaching rounds down."""
    return math.ceil(size * (1 - noise) - 1e-9)


def uncertainty(votes: Tensor) -> Tensor:
    """F = −Σ_c P_c·ln P_c / ln C, from how often each class was predicted [B, C]: 0 if always the same."""
    shares = votes / votes.sum(1, keepdim=True)
    entropies: Tensor = torch.special.entr(shares)
    return entropies.sum(1) / math.log(votes.shape[1])


def remember(predicted: Tensor, rows: Tensor, state: State) -> None:
    """Put predictions of some rows into their histories, in the place of the oldest."""
    seen = state["seen"][rows]
    state["predictions"][rows, seen % state["predictions"].shape[1]] = predicted.to(torch.int16)
    state["seen"][rows] = seen + 1
