"""FedCorr: find noisy clients and samples, fine-tune on clean clients, train on corrected labels.

Xu, Chen, Quek, Chong. "FedCorr: Multi-Stage Federated Learning for Label Noise Correction". CVPR
2022. Follows the authors' code; where it does not, and what is unconfirmed: docs/methods.md.

Three stages: (1) T1 iterations over all clients in random order, handing the model from one to the
next; after each, two mixtures split clients by the dimension of their predictions and the samples of
noisy clients by their losses, and some labels are corrected. (2) T2 rounds on clean clients, then
one correction of all confident samples of noisy clients. (3) T3 rounds on all clients.

Symbols: K clients, m of them in a round, m1 in a chunk, R all rounds, w_g global model, y_k current
labels, l losses, L cumulative LID, μ_k noise ratio, D_n noisy samples, Q softmax of the global model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

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
    Step,
    Terms,
    Update,
)
from flnl_bench.numerics import (
    add_pull,
    bounded_cross_entropy,
    clients_in_turn,
    is_finite,
    loss_mixture,
    mixed,
    mixup_cross_entropy,
    with_mixup,
)
from flnl_methods.intrinsic_dimension import client_dimension

LAST_ROUNDS = 10  # the headline is their mean: they should all be in stage 3


class Schedule(NamedTuple):
    """The three stages of a run."""

    visiting: int  # ⌈K/m⌉, rounds of one iteration of stage 1
    iterations: int  # T1
    finetuning: int  # T2
    usual: int  # T3

    @property
    def preprocessing(self) -> int:
        """The rounds of stage 1."""
        return self.iterations * self.visiting

    def stage(self, t: int) -> int:
        """1, 2 or 3, the stage that round t belongs to."""
        return 1 if t < self.preprocessing else 2 if t < self.preprocessing + self.finetuning else 3


class FedCorr(Method):
    """Pre-processing, fine-tuning, usual training; the defaults are the authors' values for CIFAR-10."""

    name = "fedcorr"
    reference = "Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022"
    version = 2  # the recorded training loss is that of MixUp alone

    iterations: Annotated[int, Range(1)] = 5  # T1, at most; fewer in short runs
    finetuning_share: Share = 10 / 19  # T2 as a share of the rounds after stage 1
    chunk: Annotated[int, Range(1)] = 1  # m1, clients that start from the same model in stage 1
    beta: NotNegative = 5.0  # β, strength of the proximal term per μ_k
    prox: Literal["norm", "squared"] = "norm"
    mixup: Positive = 1.0  # α of Beta(α, α)
    neighbours: Annotated[int, Range(1)] = 20  # k of the LID
    lid_min_gap: NotNegative = 0.0  # in pooled standard deviations; means that are closer are no split
    loss_space: Literal["prob_ce", "nll"] = "prob_ce"
    relabel_ratio: Share = 0.5  # π, share of D_n that may be relabelled
    confidence: Share = 0.5  # θ
    clean_threshold: Share = 0.1  # κ, largest μ_k of the clients of stage 2
    eval_aug: Literal["plain", "weak"] = "plain"  # the authors' code looks at augmented images

    # -- schedule ----------------------------------------------------------------------------------
    def schedule(self, terms: Terms) -> Schedule:
        """T1, T2, T3 within R rounds: about half for stage 1, less where T2 or T3 would fall below ten.

        Two iterations are kept as long as a round is left for stage 3; a warning reports shorter runs.
        """
        rounds, visiting = terms.rounds, terms.rounds_for_all
        half = rounds * terms.sampled // (2 * terms.clients)
        iterations = min(
            self.iterations,
            max(2, half),
            max(2, (rounds - 2 * LAST_ROUNDS) // visiting),
            (rounds - 1) // visiting,
        )
        left = rounds - iterations * visiting
        finetuning = min(round(self.finetuning_share * left), left - min(LAST_ROUNDS, math.ceil(left / 2)))
        return Schedule(visiting, iterations, finetuning, left - finetuning)

    def warmup(self, terms: Terms) -> int:
        """The rounds of stages 1 and 2."""
        schedule = self.schedule(terms)
        return schedule.preprocessing + schedule.finetuning

    def sample(self, server: Server) -> list[int]:
        """Stage 1: the next m of a permutation of all clients; 2: m clean ones; 3: m of all."""
        schedule, t, m = self.schedule(server.terms), server.round, server.terms.sampled
        stage = schedule.stage(t)
        if stage == 3:
            return super().sample(server)
        if stage == 2:
            clean = clean_clients(server.state["noise_ratio"], self.clean_threshold, m)
            draws = server.stream("sample", t).choice(clean, min(m, len(clean)), replace=False)
            return [int(k) for k in draws]
        return clients_in_turn(server, "iteration")

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """Per client: cumulative LID, the newest LID score, μ_k; and who is noisy (None: not yet known)."""
        clients, schedule = server.terms.clients, self.schedule(server.terms)
        if schedule.iterations < 2 or schedule.usual < LAST_ROUNDS:
            _, t1, t2, t3 = schedule
            warnings.warn(
                f"fedcorr: {server.terms.rounds} rounds leave {t1} iterations over all clients (it needs 2), "
                f"{t2} rounds of fine-tuning and {t3} of usual training (the last {LAST_ROUNDS} count)",
                stacklevel=2,
            )
        return {
            "lid": np.zeros(clients),  # L
            "score": np.full(clients, np.nan),  # NaN: not defined
            "noise_ratio": np.zeros(clients),
            "noisy": None,
        }

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """The exchange of the current stage, and what is due at the end of it."""
        schedule, done = self.schedule(server.terms), server.round + 1
        stage = schedule.stage(server.round)
        chosen = self.sample(server)
        size = self.chunk if stage == 1 else len(chosen)
        for first in range(0, len(chosen), size):
            updates = federation.train(chosen[first : first + size])
            server.weights = self.aggregate(server, updates)
            if stage == 1:
                note_scores(server.state["score"], updates)
        if stage == 1 and done % schedule.visiting == 0:
            self.end_iteration(server, federation)
        if done == self.warmup(server.terms):
            federation.visit(server.state["noisy"] or [], self.correct_confident)
        return {"stage": float(stage), "noisy_clients": float(len(server.state["noisy"] or []))}

    def end_iteration(self, server: Server, federation: Federation) -> None:
        """Split the clients by their cumulative LID; noisy ones estimate μ_k, then correct labels."""
        state = server.state
        known = np.flatnonzero(np.isfinite(state["score"]))
        state["lid"][known] += state["score"][known]
        noisy = known[upper_group(state["lid"][known], server.seed, self.lid_min_gap)]
        state["noisy"] = [int(k) for k in noisy]
        state["noise_ratio"][:] = 0.0
        for k, answer in federation.visit(state["noisy"], self.correct_suspects).items():
            state["noise_ratio"][k] = answer["noise_ratio"]

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """Stage 1: μ_k of the iteration before; a visit at its end finds zero there. Later nothing."""
        if self.schedule(server.terms).stage(server.round) > 1:
            return {}
        return {"noise_ratio": float(server.state["noise_ratio"][client_id])}

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """Current labels, the losses of the current iteration, and the samples suspected at its end."""
        return {
            "labels": client.y.clone(),  # y_k
            "losses": torch.zeros(client.size, device=client.y.device),  # l
            "suspects": torch.zeros_like(client.y, dtype=torch.bool),  # D_n
            "kept": torch.ones_like(client.y, dtype=torch.bool),  # y_k is the given label
            "lid_dropped": 0.0,
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """w and w_g."""
        client.scratch["pair"] = list(model.parameters()), list(client.received.parameters())

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """Shuffled epochs with MixUp; the authors leave the first batch of an epoch without a norm."""
        steps: list[Step] = []
        for _ in range(client.epochs):
            epoch = client.steps(epochs=1)
            bare = 1 if self.prox == "norm" else 0
            steps += [replace(step, note={"proximal": i >= bare}) for i, step in enumerate(epoch)]
        yield with_mixup(steps, client.rng, self.mixup)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """MixUp on the current labels."""
        lam, order = batch.note["lam"], batch.note["order"]
        labels = client.state["labels"].index_select(0, batch.index)
        logits = model(mixed(batch.x, lam, order))
        return mixup_cross_entropy(logits, labels, labels.index_select(0, order), lam)

    def on_gradient(self, model: nn.Module, batch: Batch, client: Client) -> None:
        """The gradient of the proximal term β·μ_k·‖w − w_g‖, or of β·μ_k·‖w − w_g‖²."""
        pull, squared = self.beta * client.inbox.get("noise_ratio", 0.0), self.prox == "squared"
        if pull > 0 and batch.note["proximal"]:
            weights, anchors = client.scratch["pair"]
            add_pull(weights, anchors, 2 * pull if squared else pull, squared=squared)

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """Stage 1: the mean LID of the local model's predictions; NaN where it is not defined."""
        if self.schedule(client.terms).stage(client.round) > 1:
            return {}
        logits = client.map(lambda batch: model(batch.x), views=(self.eval_aug,))
        client.state["losses"] = self.sample_losses(logits, client.state["labels"])
        score = client_dimension(logits.softmax(1), self.neighbours)
        client.state["lid_dropped"] = score.dropped
        return {"lid": math.nan if score.mean is None else score.mean}

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """l; the authors feed probabilities into a cross-entropy that applies softmax again."""
        if self.loss_space == "nll":
            return F.cross_entropy(logits, labels, reduction="none")
        return bounded_cross_entropy(logits.softmax(1), labels)

    def correct_suspects(self, client: Client) -> Mapping[str, Any]:
        """Find D_n by the losses; the global model relabels the π·|D_n| largest. Sends μ_k = |D_n|/n_k."""
        state = client.state
        losses = state["losses"].cpu().numpy()
        suspects = upper_group(losses, int(client.rng.integers(2**31)))
        candidates = largest(losses, self.relabel_ratio, suspects)
        state["suspects"] = torch.from_numpy(suspects)
        self._relabel(client, torch.from_numpy(candidates))
        return {"noise_ratio": float(suspects.mean())}

    def correct_confident(self, client: Client) -> Mapping[str, Any]:
        """The end of stage 2: every confident prediction becomes a label."""
        self._relabel(client, torch.ones(client.size, dtype=torch.bool))
        return {}

    def _relabel(self, client: Client, candidates: Tensor) -> None:
        q = client.map(lambda batch: client.received(batch.x).softmax(1), views=(self.eval_aug,))
        labels = client.state["labels"]
        new = corrected(labels, q, candidates.to(labels.device), self.confidence)
        client.state.update(labels=new, kept=new == client.y)

    # -- for the recorder alone --------------------------------------------------------------------
    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Current labels; once the clients were split, what was corrected or is in D_n counts as noisy.

        μ_k alone would be the noise that is left after the corrections, not that of the given labels.
        """
        numbers = {"lid_dropped": state["lid_dropped"]}
        noisy = server.state["noisy"]
        if noisy is None:
            return Beliefs(labels=state["labels"], numbers=numbers)
        suspects = state["suspects"] if client_id in noisy else torch.zeros_like(state["suspects"])
        clean = state["kept"] & ~suspects.to(state["kept"].device)
        return Beliefs(
            clean=clean,
            noise_ratio=1 - clean.float().mean().item(),
            noisy_client=client_id in noisy,
            labels=state["labels"],
            numbers=numbers,
            losses=state["losses"],
        )


def upper_group(values: np.ndarray, seed: int, min_gap: float = 0.0) -> np.ndarray:
    """Which values [n] a two-component mixture puts on its upper side; none where there is one group."""
    fit = loss_mixture(values, seed=seed)
    if fit is None:
        return np.zeros(len(values), dtype=bool)
    upper = fit.clean_probability < 0.5
    pooled = math.sqrt(np.dot(fit.shares, fit.variances))
    one_group = upper.all() or fit.means[1] - fit.means[0] < min_gap * pooled
    return np.zeros_like(upper) if one_group else upper


def largest(losses: np.ndarray, share: float, suspects: np.ndarray) -> np.ndarray:
    """The ⌊share·|D_n|⌋ samples with the largest losses."""
    count = math.floor(share * int(suspects.sum()) + 1e-9)  # 0.5·6 must not come out as 2.99…
    chosen = np.zeros(len(losses), dtype=bool)
    chosen[np.argsort(-losses, kind="stable")[:count]] = True
    return chosen


def corrected(labels: Tensor, q: Tensor, candidates: Tensor, confidence: float) -> Tensor:
    """Labels of candidates replaced by the prediction where it is more confident than θ."""
    top, guess = q.max(1)
    return torch.where(candidates & (top > confidence), guess, labels)


def clean_clients(noise_ratio: np.ndarray, threshold: float, sampled: int) -> np.ndarray:
    """S_c: clients with μ_k ≤ κ; if there are none, the few with the smallest μ_k."""
    clean = np.flatnonzero(noise_ratio <= threshold)
    if len(clean):
        return clean
    return np.sort(np.argsort(noise_ratio, kind="stable")[: max(sampled, math.ceil(0.1 * len(noise_ratio)))])


def note_scores(scores: np.ndarray, updates: Sequence[Update]) -> None:
    """Keep the LID scores of an iteration; of a model that is not finite the score before stays."""
    for update in updates:
        if is_finite(update.weights):
            scores[update.client] = update.message["lid"]
