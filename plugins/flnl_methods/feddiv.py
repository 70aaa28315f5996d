"""FedDiv: a mixture over losses, learnt by all clients together, filters every client's labels.

Li, Li, Cheng, Liao, Yu. "FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy
Labels". AAAI 2024. Each client fits the filter to its losses by a few EM steps, the server averages
the filters. Confident samples that the filter calls noisy take the global model's label, and a
sampler keeps the samples on which the global and the de-biased local prediction agree.

Symbols: W filter, γ clean posterior, δ_k noise ratio of client k, ŷ label of the global model,
ỹ de-biased label of the local model, p_k class prior of the local model, v_k visits, D̂_k the samples
that are trained on.

Paper and released code differ: docs/methods.md says which is followed where, and what is unconfirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
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
    bounded_cross_entropy,
    count_work,
    min_max_scaled,
    mixed,
    mixup_cross_entropy,
    uniform_penalty,
    with_mixup,
)

Filter = np.ndarray  # W as float64 [3, 2]: means, variances, shares; the clean component first

FIXED_START: Filter = np.array([[0.25, 0.75], [0.05, 0.05], [0.5, 0.5]])
LEAST_VARIANCE = 1e-6


class FedDiv(Method):
    """Filter, relabel, sample by consistency."""

    name = "feddiv"
    reference = "Li et al., FedDiv: Collaborative Noise Filtering for F-LNL, AAAI 2024"
    variants = {
        "release-filter": {"filter_mode": "release"},
        "persistent": {"persist_relabels": True},
    }

    warmup_share: Share = 0.1  # T'_wu as a share of all rounds; at least three rounds
    confidence: Share = 0.75  # ζ, from which the global model may relabel
    debias: NotNegative = 0.5  # ξ, how much of log p_k is taken off the logits
    momentum: Share = 0.2  # m, what p_k keeps at a visit
    clean_client: Share = 0.1  # δ_k up to which a client is treated as clean
    relabel_gate: Share = 0.2  # δ_k above which relabelled samples are trained on
    visits_share: Share = 0.053  # v_min as a share of the expected visits ω·R; at least one visit
    em_steps: Annotated[int, Range(1)] = 3
    eta: NotNegative | None = None  # η, weight of the regulariser; None: 1, and 0 for IID partitions
    mixup: Positive = 1.0  # both parameters of MixUp's Beta distribution
    least_samples: Annotated[int, Range()] | None = None  # D̂_k is trained on if larger; None, and at most: B
    prior_floor: Positive = 1e-8  # p_k is not taken smaller in its logarithm
    # The released code starts at random and weighs variances with g²: its first splits are chance.
    filter_mode: Literal["fixed", "release"] = "fixed"
    # In the released code new labels overwrite the given ones for good, in the filter's losses too.
    persist_relabels: bool = False

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """T'_wu, the rounds of FedAvg with MixUp on all given labels."""
        return max(3, round(self.warmup_share * terms.rounds))

    def least_visits(self, terms: Terms) -> int:
        """v_min, the visits after which a client samples by consistency."""
        return max(1, round(self.visits_share * terms.fraction * terms.rounds))

    def regularisation(self, client: Client) -> float:
        """η in this round: 0 in the warm-up, and by default for IID partitions."""
        if client.round < self.warmup(client.terms):
            return 0.0
        return float(not client.terms.iid) if self.eta is None else self.eta

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The filter, and the newest one of every client that was seen."""
        random = self.filter_mode == "release"
        start = random_start(server.stream("filter")) if random else FIXED_START.copy()
        return {"filter": start, "filters": {}}

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """W; nothing in the warm-up."""
        return {} if server.round < self.warmup(server.terms) else {"filter": server.state["filter"]}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg with the full n_k, then the average of the filters."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        if server.round < self.warmup(server.terms):
            return {}
        self.merge_filters(server, updates)
        (clean_mean, noisy_mean), _, (clean_share, _) = server.state["filter"].tolist()
        return {
            "filter_clean_mean": clean_mean,
            "filter_noisy_mean": noisy_mean,
            "filter_clean_share": clean_share,
        }

    def merge_filters(self, server: Server, updates: Sequence[Update]) -> None:
        """Cache the W_k of the round; W becomes the average over the clients seen so far."""
        cache = server.state["filters"]
        cache.update({u.client: ordered(u.message["filter"]) for u in updates if "filter" in u.message})
        seen = sorted(cache)
        if not seen:
            return
        power = 2 if self.filter_mode == "release" else 1
        server.state["filter"] = average_filters(
            [cache[k] for k in seen], [server.sizes[k] for k in seen], power
        )

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """Class prior, cached de-biased labels (-1: none yet), visits, labels."""
        classes = client.terms.classes
        return {
            "prior": torch.full((classes,), 1 / classes, device=client.y.device),  # p_k
            "debiased": torch.full_like(client.y, -1),  # ỹ
            "visits": 0,  # v_k, without the warm-up
            "labels": client.y.clone(),  # given, or replaced with persist_relabels
        }

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """Split, relabel and sample: D̂_k and its labels."""
        state = client.state
        if client.round < self.warmup(client.terms):
            state.update(targets=state["labels"], skipped=0.0)
            return
        labels = state["labels"]
        losses, top, guess = self.look(client)  # guess: ŷ
        judged = filtered(losses, client.inbox["filter"])
        clean, ratio = judged["clean"], judged["noise_ratio"]
        relabelled = ~clean & (top >= self.confidence)
        refined = labels if ratio <= self.clean_client else torch.where(relabelled, guess, labels)
        agree = (state["debiased"] == guess) | (state["debiased"] < 0)
        sampling = state["visits"] >= self.least_visits(client.terms)
        chosen = self.choose(clean, relabelled, agree, ratio, sampling)
        skipped = int(chosen.sum()) <= self.too_few(client.terms)
        state.update(targets=torch.where(chosen & (not skipped), refined, -1), skipped=float(skipped))
        state["judged"] = {
            **judged,
            "kept": labels == client.y,  # not so where persist_relabels has replaced a label
            "pseudo": torch.where(relabelled, guess, -1),
        }
        if self.persist_relabels:
            state["labels"] = torch.where(agree, refined, labels)

    def look(self, client: Client) -> tuple[Tensor, Tensor, Tensor]:
        """The global model's loss on each sample, the largest probability and its class."""
        received, labels = client.received, client.state["labels"]

        def look(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            probabilities = received(batch.x).softmax(1)
            return (bounded_cross_entropy(probabilities, labels[batch.index]), *probabilities.max(1))

        losses, top, guess = client.map(look)
        return losses, top, guess

    def choose(
        self, clean: Tensor, relabelled: Tensor, agree: Tensor, ratio: float, sampling: bool
    ) -> Tensor:
        """D̂_k as a mask [n]; `agree` is ŷ = ỹ, `sampling` is v_k ≥ v_min."""
        if ratio <= self.clean_client:
            return torch.ones_like(clean)
        if not sampling:
            return clean
        return agree & (clean | relabelled if ratio > self.relabel_gate else clean)

    def too_few(self, terms: Terms) -> int:
        """The size of D̂_k up to which there is no training."""
        return terms.batch_size if self.least_samples is None else min(self.least_samples, terms.batch_size)

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """E epochs over D̂_k with the draws of MixUp; none where D̂_k is too small."""
        rows = (client.state["targets"] >= 0).nonzero()[:, 0].cpu().numpy()
        if len(rows):
            yield with_mixup(client.steps(rows), client.rng, self.mixup)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Cross-entropy of MixUp + η·L_reg, which all examples share."""
        lam, order = batch.note["lam"], batch.note["order"]
        y = client.state["targets"].index_select(0, batch.index)
        logits = model(mixed(batch.x, lam, order))
        total = mixup_cross_entropy(logits, y, y.index_select(0, order), lam)
        eta = self.regularisation(client)
        return total + eta * uniform_penalty(logits) if eta else total

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """W_k from the losses of the trained model (none if all are equal); its logits give ỹ and p_k."""
        if client.round < self.warmup(client.terms):
            return {}
        state, start = client.state, client.inbox["filter"]
        labels = state["labels"]

        def look(batch: Batch) -> tuple[Tensor, Tensor]:
            logits = model(batch.x)
            return logits, bounded_cross_entropy(logits.softmax(1), labels[batch.index])

        logits, losses = client.map(look)
        self.update_bias(logits, state)
        state["visits"] += 1
        x = min_max_scaled(losses.cpu().numpy())
        return {} if x is None else {"filter": fit_filter(x, start, self.em_steps)}

    def update_bias(self, logits: Tensor, state: State) -> None:
        """ỹ under the old p_k; then p_k ← m·p_k + (1 − m)·mean prediction."""
        # Cached for the next visit, as in the released code; the paper computes it again in every epoch.
        state["debiased"] = debiased(logits, state["prior"], self.debias, self.prior_floor).argmax(1)
        state["prior"] = self.momentum * state["prior"] + (1 - self.momentum) * logits.softmax(1).mean(0)

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """The filter's split; on a client that is treated as clean every label counts as clean."""
        numbers = {"skipped": state["skipped"]}
        judged = state.get("judged")
        if judged is None:
            return Beliefs(labels=state["targets"], numbers=numbers)
        trusted = judged["noise_ratio"] <= self.clean_client
        return Beliefs(
            clean=(judged["clean"] | trusted) & judged["kept"],
            clean_probability=judged["clean_probability"],
            noise_ratio=judged["noise_ratio"],
            labels=state["targets"],
            pseudo_labels=judged["pseudo"],
            numbers={**numbers, "treated_as_clean": float(trusted)},
            losses=judged["losses"],
        )


# -- losses ------------------------------------------------------------------------------------------
def debiased(logits: Tensor, prior: Tensor, xi: float, floor: float = 1e-8) -> Tensor:
    """f − ξ·log p_k."""
    return logits - xi * prior.clamp_min(floor).log()


# -- the filter --------------------------------------------------------------------------------------
def filtered(losses: Tensor, mixture: Filter) -> dict[str, Any]:
    """What the filter says of each sample [n], and δ_k; all clean where the losses are equal."""
    x = min_max_scaled(losses.cpu().numpy())
    posterior = np.ones(len(losses)) if x is None else clean_posterior(x, mixture)  # γ
    clean = torch.from_numpy(posterior > 0.5).to(losses.device)
    return {
        "clean": clean,
        "clean_probability": torch.from_numpy(posterior).float(),
        "losses": losses if x is None else torch.from_numpy(x).float(),  # as the filter sees them
        "noise_ratio": int((~clean).sum()) / len(losses),
    }


def responsibilities(x: np.ndarray, mixture: Filter) -> np.ndarray:
    """Posterior of both components [n, 2], in log space: variances may be tiny."""
    means, variances, shares = mixture
    log = np.log(shares) - 0.5 * (np.log(variances) + (x[:, None] - means) ** 2 / variances)
    weights = np.exp(log - log.max(1, keepdims=True))
    posterior: np.ndarray = weights / weights.sum(1, keepdims=True)
    return posterior


def clean_posterior(x: np.ndarray, mixture: Filter) -> np.ndarray:
    """γ, the posterior of the component with the smaller mean."""
    return responsibilities(x, mixture)[:, mixture[0].argmin()]


def maximise(x: np.ndarray, r: np.ndarray, mixture: Filter) -> Filter:
    """The M-step; a component without responsibility keeps its place and a share of 10⁻³."""
    mass = r.sum(0)
    empty = mass < 1e-8
    total = np.where(empty, 1.0, mass)
    means = np.where(empty, mixture[0], x @ r / total)
    spread = (r * (x[:, None] - means) ** 2).sum(0) / total + LEAST_VARIANCE
    shares = np.where(empty, 1e-3, mass / len(x))
    return np.stack([means, np.where(empty, mixture[1], spread), shares / shares.sum()])


def fit_filter(x: np.ndarray, mixture: Filter, steps: int) -> Filter:
    """W_k: some EM steps from W, never from scratch, so that the components keep their order."""
    count_work(mixtures=1)
    for _ in range(steps):
        mixture = maximise(x, responsibilities(x, mixture), mixture)
    return ordered(mixture)


def ordered(mixture: Filter) -> Filter:
    """The component with the smaller mean first: filters in another order cannot be averaged."""
    return mixture[:, np.argsort(mixture[0], kind="stable")]


def average_filters(filters: Sequence[Filter], sizes: Sequence[int], power: int = 1) -> Filter:
    """Σ g_k·W_k with g_k = n_k / Σn; the variances with g_k to the given power."""
    g = np.array(sizes, dtype=np.float64) / sum(sizes)
    stack = np.stack(filters)  # [k, 3, 2]
    means, _, shares = np.tensordot(g, stack, 1)
    variances = np.tensordot(g**power, stack[:, 1], 1)
    return np.stack([means, np.maximum(variances, LEAST_VARIANCE), shares])


def random_start(rng: np.random.Generator) -> Filter:
    """The released code's start: random responsibilities for 1000 points of two blobs."""
    x = np.repeat(rng.uniform(-10, 10, 2), 500) + rng.normal(size=1000)
    x = (x - x.min()) / np.ptp(x)
    r = rng.random((1000, 2))
    return ordered(maximise(x, r / r.sum(1, keepdims=True), FIXED_START))
