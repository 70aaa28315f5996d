"""FedEFC and forward correction: the loss of a noisy label is that of a model of how labels become wrong.

Forward: Patrini, Rozza, Menon, Nock, Qu. "Making Deep Neural Networks Robust to Label Noise: A Loss
Correction Approach". CVPR 2017. Estimate: Northcutt, Jiang, Chuang. "Confident Learning: Estimating
Uncertainty in Dataset Labels". JAIR 2021. FedEFC: Yu, Ahn, Kang. "FedEFC: Federated Learning Using Enhanced
Forward Correction Against Noisy Labels". arXiv 2504.05615, 2025.

FedEFC follows the authors' code; choices, and what is unconfirmed: docs/methods.md.

Symbols: p = softmax(z), y given label, J counts of given (row) and guessed true label (column), Q[i, j] =
P(given i | true j), T_e round in which FedEFC stops waiting, A(t) mean accuracy reported in round t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

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
    Range,
    Server,
    Share,
    State,
    Terms,
)
from flnl_bench.noisy_clients import rounds_before_detection

TIE = 1e-6  # scores this far below a threshold pass it


class Joint(NamedTuple):
    """The confident joint of some samples."""

    counts: Tensor  # J [C, C]; the diagonal is at least one
    guesses: Tensor  # int64 [n], the guessed true class, -1: none


def confident_joint(p: Tensor, given: Tensor) -> Joint:
    """Count given labels against classes whose score [n, C] reaches the mean score of their own samples.

    If several classes do, the guess is the largest score of all classes, which need not be one of them.
    """
    classes = p.shape[1]
    members = F.one_hot(given, classes).to(p.dtype)  # [n, C]
    sizes = members.sum(0)
    thresholds = ((p * members).sum(0) / sizes.clamp_min(1)).clamp_min(2 * TIE)
    confident = (p >= thresholds - TIE) & (sizes > 0)
    number = confident.sum(1)
    guesses = torch.where(number > 1, p.argmax(1), torch.where(number > 0, confident.int().argmax(1), -1))
    guessed = F.one_hot(guesses + 1, classes + 1)[:, 1:].to(p.dtype)  # a row of zeros: no guess
    counts = members.T @ guessed
    return Joint(torch.maximum(counts, torch.eye(classes).to(counts)), guesses)


def given_by_true(counts: Tensor) -> Tensor:
    """Return Q: each column of counts [C, C] scaled to one; the unit vector for an empty column."""
    sums = counts.sum(0)
    return torch.where(sums > 0, counts / sums.clamp_min(1e-12), torch.eye(len(counts)).to(counts))


def corrected_cross_entropy(logits: Tensor, y: Tensor, transitions: Tensor) -> Tensor:
    """−ln Σ_j Q[y, j]·p_j per example; with Q = I it is cross-entropy."""
    return -((transitions[y] * logits.softmax(1)).sum(1) + 1e-12).log()


class LossCorrection(Method):
    """FedAvg whose clients correct their loss by the Q in `client.scratch`, if there is one."""

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Corrected cross-entropy; plain cross-entropy before there is an estimate."""
        if "transitions" not in client.scratch:
            return super().loss(model, batch, client)
        return corrected_cross_entropy(model(batch.x), batch.y, client.scratch["transitions"])


class FedEFC(LossCorrection):
    """FedAvg until accuracies stop rising; then each visit estimates Q (from the code; paper unconfirmed)."""

    name = "fedefc"
    reference = "Yu et al., FedEFC: Federated Learning Using Enhanced Forward Correction, arXiv 2504.05615"
    variants = {"released": {"accuracy": "training", "view": "weak"}}

    monitor_share: Share = 0.2  # T_mon as a share of all rounds: accuracies before do not count
    patience: Annotated[int, Range(1)] | None = None  # γ, rounds without gain; None: 3 % of them, at least 3
    accuracy: Literal["received", "training"] = "received"  # A_k: of the global model, or while training
    view: Literal["plain", "weak"] = "plain"  # of the images that Q is estimated from

    # -- schedule ----------------------------------------------------------------------------------
    def first_watched(self, terms: Terms) -> int:
        """T_mon; later rounds are watched."""
        return round(self.monitor_share * terms.rounds)

    def waits(self, terms: Terms) -> int:
        """γ."""
        return max(3, round(0.03 * terms.rounds)) if self.patience is None else self.patience

    def warmup(self, terms: Terms) -> int:
        """The rounds before the earliest correction."""
        return self.first_watched(terms) + self.waits(terms) + 2

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The best A so far, the rounds without gain, and T_e."""
        return {"best": 0.0, "without_gain": 0, "prestop_round": None}

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """A flag from round T_e + 1 on."""
        return {} if server.state["prestop_round"] is None else {"correct": True}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg, then a look at what clients report."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        self.watch(server, [update.message["accuracy"] for update in updates if update.message])
        stopped = server.state["prestop_round"]
        return {"prestop_round": -1.0 if stopped is None else float(stopped), "best": server.state["best"]}

    def watch(self, server: Server, accuracies: Sequence[float]) -> None:
        """Count rounds whose plain mean A(t) is no record; after γ of them, this round is T_e."""
        state, finite = server.state, [a for a in accuracies if math.isfinite(a)]
        if (
            state["prestop_round"] is not None
            or server.round <= self.first_watched(server.terms)
            or not finite
        ):
            return
        mean = sum(finite) / len(finite)
        state["without_gain"] = 0 if mean > state["best"] else state["without_gain"] + 1
        state["best"] = max(mean, state["best"])
        if state["without_gain"] >= self.waits(server.terms):
            state["prestop_round"] = server.round

    # -- a round on a client -----------------------------------------------------------------------
    def on_receive(self, model: nn.Module, client: Client) -> None:
        """Q with the received model, or the accuracy that is reported."""
        if "correct" in client.inbox:
            p = client.map(lambda batch: client.received(batch.x).softmax(1), views=(self.view,))
            p = torch.where(p.isfinite().all(), p, F.one_hot(client.y, client.terms.classes))  # then Q = I
            counts, guesses = confident_joint(p, client.y)
            transitions = client.scratch["transitions"] = given_by_true(counts)
            likely = transitions[client.y] * p
            own = likely.gather(1, client.y[:, None]) / likely.sum(1, keepdim=True)
            client.state.update(guesses=guesses, right=own[:, 0], diagonal=transitions.diagonal().mean())
        elif self.accuracy == "received":
            hits = client.map(lambda batch: client.received(batch.x).argmax(1) == batch.y)
            client.scratch["accuracy"] = hits.float().mean()
        else:
            client.scratch["hits"] = torch.zeros((), device=client.y.device)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The loss; `released` counts right predictions while the model moves."""
        if "hits" not in client.scratch:
            return super().loss(model, batch, client)
        logits = model(batch.x)
        client.scratch["hits"] += (logits.detach().argmax(1) == batch.y).sum()
        return F.cross_entropy(logits, batch.y, reduction="none")

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """A_k, while the server is watching."""
        if "hits" in client.scratch:
            return {"accuracy": client.scratch["hits"].item() / (client.epochs * client.size)}
        return {"accuracy": client.scratch["accuracy"].item()} if "accuracy" in client.scratch else {}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """A label is clean unless another class was guessed; nothing before the first Q."""
        if "guesses" not in state:
            return Beliefs()
        numbers = {"mean_diagonal": float(state["diagonal"])}
        return guessed(state["guesses"], state["given"], state["right"], numbers)

    def client_state(self, client: Client) -> State:
        """The given labels, for the recorder."""
        return {"given": client.y}


def guessed(guesses: Tensor, given: Tensor, right: Tensor | None, numbers: Mapping[str, float]) -> Beliefs:
    """Return beliefs from guesses, -1 for none."""
    has = guesses >= 0
    wrong = has & (guesses != given)
    return Beliefs(
        clean=~wrong,
        clean_probability=right,
        noise_ratio=wrong.sum().item() / max(1, int(has.sum())),
        labels=given,
        pseudo_labels=guesses,
        numbers={**numbers, "with_guess": has.float().mean().item()},
    )


class Forward(LossCorrection):
    """FedAvg, one estimate of T by all clients, then forward-corrected loss (the federated form is ours)."""

    name = "forward"
    reference = "Patrini et al., Making Deep Neural Networks Robust to Label Noise, CVPR 2017"

    warmup_share: Share = 0.2  # T1 as a share of all rounds; at least 5, at most half of them
    scope: Literal["client", "global"] = "client"  # a matrix for each client, or one for all
    shrink: NotNegative = 10.0  # κ, pseudo-counts of the federation's matrix in that of a client
    estimate: Literal["joint", "anchor"] = (
        "joint"  # anchor: rows of T of the surest sample of each class; one T
    )

    def warmup(self, terms: Terms) -> int:
        """T1, the rounds before the estimate."""
        return rounds_before_detection(self.warmup_share, terms)

    def server_state(self, server: Server) -> State:
        """The federation's Q, once it is known."""
        return {"transitions": None}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg; after round T1 all clients count once."""
        super().round(server, federation)
        if server.round != self.warmup(server.terms) - 1:
            return {}
        if self.estimate == "anchor":
            answers = federation.visit(range(server.terms.clients), self.anchors)
            transitions = server.state["transitions"] = surest(answers)
            return {"estimated_noise": 1 - transitions.diagonal().mean().item()}
        answers = federation.visit(range(server.terms.clients), self.count)
        total = torch.stack([answer["counts"] for answer in answers.values()]).sum(0)
        server.state["transitions"] = given_by_true(total)
        return {"estimated_noise": 1 - (total.trace() / total.sum().clamp_min(1e-12)).item()}

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """The federation's Q."""
        transitions = server.state["transitions"]
        return {} if transitions is None else {"transitions": transitions}

    def client_state(self, client: Client) -> State:
        """The given labels."""
        return {"given": client.y}

    def count(self, client: Client) -> Mapping[str, Any]:
        """J of the global model, its rows scaled to the counts of the given labels."""
        p = client.map(lambda batch: client.received(batch.x).softmax(1))
        p = torch.where(p.isfinite().all(), p, F.one_hot(client.y, client.terms.classes))
        counts, guesses = confident_joint(p, client.y)
        counts = calibrated(counts, client.y)
        client.state.update(counts=counts, guesses=guesses)
        return {"counts": counts}

    def anchors(self, client: Client) -> Mapping[str, Any]:
        """For each class, its largest probability among the own samples, and all of that sample."""
        p = client.map(lambda batch: client.received(batch.x).softmax(1))
        scores, rows = p.nan_to_num(0.0).max(0)
        return {"scores": scores, "rows": p[rows]}

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """Q of this visit: the federation's, and in the scope of a client what the client counted."""
        if "transitions" not in client.inbox:
            return
        shared = client.inbox["transitions"]
        counted = self.scope == "client" and "counts" in client.state
        enough = counted and client.size >= client.terms.classes
        own = shrunk(client.state["counts"], shared, self.shrink) if enough else shared
        client.scratch["transitions"] = own

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """A label is clean unless another class was guessed; the noise ratio is that of J."""
        if "guesses" not in state:
            return Beliefs()
        noise = 1 - (state["counts"].trace() / state["counts"].sum()).item()
        return guessed(state["guesses"], state["given"], None, {"calibrated_noise": noise})


def surest(answers: Mapping[int, Mapping[str, Any]]) -> Tensor:
    """Return Q whose columns are the probabilities of the surest sample of each class among all clients."""
    scores, rows = (torch.stack([answer[key] for answer in answers.values()]) for key in ("scores", "rows"))
    return rows[scores.argmax(0), torch.arange(rows.shape[1])].T.contiguous()


def calibrated(counts: Tensor, given: Tensor) -> Tensor:
    """Scale each row of J to how often its label is given."""
    sizes = F.one_hot(given, len(counts)).sum(0).to(counts.dtype)
    return counts / counts.sum(1, keepdim=True) * sizes[:, None]


def shrunk(counts: Tensor, shared: Tensor, weight: float) -> Tensor:
    """Return Q of counts to which κ pseudo-counts per true class of a shared Q were added."""
    return given_by_true(counts + weight * shared)
