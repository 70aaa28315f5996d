"""FL-JointOpt: labels become the average of the network's own recent predictions, inside FedAvg.

Tanaka, Ikami, Yamasaki, Aizawa. "Joint Optimization Framework for Learning with Noisy Labels". CVPR 2018;
labels and histories on the clients as in FedRN's code base and FNBench. Two regularisers keep the network
from predicting one class for everything and from staying undecided.

Symbols: t round, T1 first round with new labels, s labels [n, C], q outputs of each sample that are kept,
p softmax, p̄ its mean over a batch, π prior, L_c / L_p / L_e losses of labels, prior and entropy.

Choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Share,
    State,
    Terms,
    Update,
    Weights,
    network_weights,
)
from flnl_bench.numerics import (
    AGGREGATORS,
    Aggregator,
    class_counts,
    combined,
    entropy,
    history_length,
    is_finite,
    soft_cross_entropy,
    warmup_rounds,
)


class JointOpt(Method):
    """Train on averaged own predictions (prior uniform as in the code; the paper's is unconfirmed)."""

    name = "jointopt"
    reference = "Tanaka et al., Joint Optimization Framework for Learning with Noisy Labels, CVPR 2018"

    alpha: NotNegative = 1.2  # α, weight of L_p
    beta: NotNegative = 0.8  # β, weight of L_e
    history: Annotated[int, Range(1)] = 10  # q at most; fewer where clients have not so many epochs before T1
    warmup_share: Share = 0.2  # T1 as a share of all rounds; at least 3, and a call of every client
    labelling: Literal["soft", "hard"] = "soft"
    prior: Literal["uniform", "given"] = "uniform"  # π: 1/C, or the client's shares of given labels
    finish: Share = 0.0  # share of the rounds, the last ones, with frozen labels and plain cross-entropy
    min_history: Annotated[int, Range(1)] = 1  # outputs that must be there before a label is renewed
    min_batch_prior: Annotated[int, Range()] | None = None  # least batch with L_p; None: C/2, or a full batch
    fnbench_history: bool = False
    aggregator: Aggregator = "mean"

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T1, the rounds in which given labels are trained on."""
        return warmup_rounds(self.warmup_share, terms)

    def finishes(self, t: int, terms: Terms) -> bool:
        """Whether labels are frozen and the regularisers off."""
        return t >= terms.rounds - round(self.finish * terms.rounds)

    def renews(self, t: int, terms: Terms) -> bool:
        """Whether labels are renewed."""
        return t >= self.warmup(terms) and not self.finishes(t, terms)

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """The given labels, and room for outputs."""
        size, classes, device = client.size, client.terms.classes, client.y.device
        length = history_length(self.history, 3, self.warmup(client.terms), client.terms)
        return {
            "given": client.y.clone(),
            "labels": F.one_hot(client.y, classes).to(torch.get_default_dtype()),
            "outputs": torch.zeros(size, length, classes, device=device),
            "seen": torch.zeros(size, dtype=torch.int64, device=device),
            "renewed": False,
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """π, and a copy of the labels for the case that training diverges."""
        state, classes = client.state, client.terms.classes
        shares = class_counts(client.y, classes) / client.size
        client.scratch["prior"] = shares if self.prior == "given" else torch.full_like(shares, 1 / classes)
        client.scratch["before"] = {name: state[name].clone() for name in ("labels", "outputs", "seen")}
        state["renewed"] |= self.renews(client.round, client.terms)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """L_c + α·L_p + β·L_e, and the outputs go into the history."""
        logits = model(batch.x)
        loss = soft_cross_entropy(logits, client.state["labels"][batch.index])
        if self.finishes(client.round, client.terms):
            return loss
        self.remember(logits.detach().softmax(1), batch.index, client)
        loss = loss + self.beta * entropy(logits)
        if len(batch.y) >= self.least_with_prior(client.terms):
            loss = loss + self.alpha * prior_loss(logits, client.scratch["prior"])
        return loss

    def least_with_prior(self, terms: Terms) -> float:
        """Samples from which a batch has L_p, which forces few of them apart; a full batch always has it."""
        if self.min_batch_prior is not None:
            return self.min_batch_prior
        return min(terms.classes / 2, terms.batch_size)

    def remember(self, outputs: Tensor, rows: Tensor, client: Client) -> None:
        """Store outputs [B, C] of some rows and, from T1 on, renew their labels.

        At once instead of after the epoch, which is the same: no row comes twice in an epoch.
        """
        state, seen = client.state, client.state["seen"][rows] + 1
        length = state["outputs"].shape[1]
        state["outputs"][rows, (seen - 1) % length] = outputs
        state["seen"][rows] = seen
        if self.renews(client.round, client.terms):
            stored = torch.full_like(seen, length) if self.fnbench_history else seen.clamp_max(length)
            label = state["outputs"][rows].sum(1) / stored.unsqueeze(1)
            if self.labelling == "hard":
                label = torch.zeros_like(label).scatter(1, label.argmax(1, keepdim=True), 1.0)
            enough = (seen >= self.min_history).unsqueeze(1)
            state["labels"][rows] = torch.where(enough, label, state["labels"][rows])

    def upload(self, model: nn.Module, client: Client) -> dict[str, Tensor]:
        """Nothing; but what a diverged model says does not become a label."""
        if not is_finite(network_weights(model)):
            client.state.update(client.scratch["before"])
        return {}

    # -- on the server -----------------------------------------------------------------------------
    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The models that are finite, made one."""
        return combined(updates, AGGREGATORS[self.aggregator], server.weights)

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """The largest class of each label, a pseudo label from T1 on; clean is what is still as given."""
        labels = state["labels"].argmax(1)
        pseudo = labels if state["renewed"] else torch.full_like(labels, -1)
        clean = labels == state["given"]
        largest = class_counts(labels, state["labels"].shape[1]).max().item() / len(labels)
        numbers = {"labels_changed": 1 - clean.float().mean().item(), "largest_class": largest}
        return Beliefs(clean=clean, labels=labels, pseudo_labels=pseudo, numbers=numbers)


def prior_loss(logits: Tensor, prior: Tensor) -> Tensor:
    """L_p = −Σ_c π_c·ln p̄_c, one value that all examples share."""
    return -(prior * logits.softmax(1).mean(0).clamp_min(1e-8).log()).sum()
