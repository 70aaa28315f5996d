"""Pieces that several methods share: weights, robust means, losses, mixtures, MixUp, small losses, schedules.

The one place for them: methods import from here, and never from another method.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench.engine.ledger import count_work as count_work
from flnl_bench.errors import BadInput

if TYPE_CHECKING:
    from flnl_bench.api import Server, Step, Terms, Update

Covariance = Literal["full", "diag", "spherical"]  # of a mixture's components

HIGHEST_FORGET_RATE = 0.95  # dropping everything leaves nothing to learn from


# -- weights -------------------------------------------------------------------------------------------
@torch.no_grad()
def average(weights: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of models, BatchNorm statistics included; shares need not sum to one."""
    total = float(sum(shares))
    # The product makes new tensors, so no model is written to; the others are added in place, with one
    # kernel for all tensors of a model instead of one for each.
    mean = {name: tensor * (shares[0] / total) for name, tensor in weights[0].items()}
    for model, share in zip(weights[1:], shares[1:], strict=True):
        torch._foreach_add_(list(mean.values()), [model[name] for name in mean], alpha=share / total)
    return mean


def is_finite(weights: Mapping[str, Tensor]) -> bool:
    """Whether no weight is NaN or infinite; it waits for the device once, so not for use in a step."""
    return bool(torch.stack([torch.isfinite(tensor).all() for tensor in weights.values()]).all())


@torch.no_grad()
def sgd_step(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    lr: float,
    momentum: float = 0.0,
    decay: float = 0.0,
) -> None:
    """In place, v ← momentum·v + g + decay·w and w ← w − lr·v, for weights that the engine does not train."""
    for w, v, g in zip(weights, velocities, gradients, strict=True):
        v.mul_(momentum).add_(g + decay * w)
        w.sub_(lr * v)


def squared_distances(model: nn.Module, anchor: nn.Module) -> Tensor:
    """‖w − w_a‖² of every parameter tensor [P], for a proximal term; only `model` gets a gradient."""
    # Parameters, not weights: a pull on running statistics has no gradient and would only add a constant.
    pairs = zip(model.parameters(), anchor.parameters(), strict=True)
    return torch.stack([(w - fixed.detach()).square().sum() for w, fixed in pairs])


# -- robust means --------------------------------------------------------------------------------------
# Each takes models and shares as `average` does and may stand in its place. Only the geometric median
# looks at the shares: the others are published without, and ten images count as much as a thousand.
Models = Sequence[Mapping[str, Tensor]]
Rule = Callable[[Models, Sequence[float]], dict[str, Tensor]]
Aggregator = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum", "rfa"]

STATISTICS = ("running_mean", "running_var")  # ends of names; large variances must not decide who is far


def combined(updates: Sequence[Update], rule: Rule, otherwise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The finite models of a round made one by a rule; `otherwise`, the global weights, if there are none."""
    sound = [update for update in updates if is_finite(update.weights)]
    return rule([u.weights for u in sound], [u.size for u in sound]) if sound else dict(otherwise)


def distrusted(count: int, share: float, least: int) -> int:
    """f of `count` models, ⌊share·m⌋, but so few that 2f + `least` models are there."""
    return max(0, min(int(share * count + 1e-9), (count - least) // 2))


def coordinate_median(weights: Models, shares: Sequence[float] = ()) -> dict[str, Tensor]:
    """The median of every coordinate; of an even number of models the mean of the two middle values."""
    return _middle_mean(weights, (len(weights) - 1) // 2)


def trimmed_mean(weights: Models, shares: Sequence[float] = (), distrust: float = 0.3) -> dict[str, Tensor]:
    """The mean of every coordinate without its f smallest and f largest values."""
    return _middle_mean(weights, distrusted(len(weights), distrust, least=1))


def krum(
    weights: Models, shares: Sequence[float] = (), distrust: float = 0.3, selected: int | None = 1
) -> dict[str, Tensor]:
    """The mean of the `selected` models (None: m − f − 2) with the smallest scores; all of one or two models.

    A score is the sum of squared distances to the m − f − 2 nearest others; of equal ones the first counts.
    """
    count = len(weights)
    if count < 3:
        return average(weights, [1] * count)
    near = count - distrusted(count, distrust, least=3) - 2
    found = [_squared_distance(a, b) for a, b in combinations(weights, 2)]
    distances = found[0].new_zeros(count, count)
    for (i, j), distance in zip(combinations(range(count), 2), found, strict=True):
        distances[i, j] = distances[j, i] = distance
    scores = distances.sort(1).values[:, 1 : near + 1].sum(1)  # the first is that to itself
    chosen = sorted(scores.argsort(stable=True)[: near if selected is None else selected].tolist())
    return average([weights[k] for k in chosen], [1] * len(chosen))


def geometric_median(
    weights: Models, shares: Sequence[float], steps: int = 3, floor: float = 1e-6
) -> dict[str, Tensor]:
    """The model whose weighted sum of distances to all is least, after steps of Weiszfeld from the mean."""
    centre = average(weights, shares)
    for _ in range(steps):
        distances = [_squared_distance(model, centre).sqrt().item() for model in weights]
        near = [share / max(floor, distance) for share, distance in zip(shares, distances, strict=True)]
        centre = average(weights, near)
    return centre


AGGREGATORS: dict[str, Rule] = {
    "mean": average,
    "median": coordinate_median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": partial(krum, selected=None),
    "rfa": geometric_median,
}


@torch.no_grad()
def _middle_mean(weights: Models, drop: int) -> dict[str, Tensor]:
    """The mean of every coordinate without its `drop` smallest and largest values."""
    kept, middle = slice(drop, len(weights) - drop), {}
    for name, first in weights[0].items():
        values = torch.stack([model[name] for model in weights]).sort(0).values
        # In the memory layout of the models: with another one, networks give other bits.
        middle[name] = torch.empty_like(first).copy_(values[kept].mean(0))
    return middle


@torch.no_grad()
def _squared_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """‖θ − θ'‖² over the parameters, BatchNorm statistics left out, summed in float64."""
    names = [name for name in one if not name.endswith(STATISTICS)]
    return torch.stack([_double(one[name] - other[name]).square().sum() for name in names]).sum()


def _double(values: Tensor) -> Tensor:
    """In float64, on the CPU if the device has none (Apple's)."""
    return (values.cpu() if values.device.type == "mps" else values).double()


# -- losses --------------------------------------------------------------------------------------------
def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ_c target_c · log softmax(logits)_c per example; the target need not sum to one."""
    return -(target * F.log_softmax(logits, dim=1)).sum(1)


def kl_divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(softmax(teacher/τ) ‖ softmax(student/τ)) per example, without a τ² factor."""
    # Both sides as logarithms: p·(ln p − ln q) is 0, not NaN, where p underflows.
    log_p = F.log_softmax(teacher / temperature, dim=1)
    log_q = F.log_softmax(student / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def entropy(logits: Tensor) -> Tensor:
    """−Σ_c p_c·ln p_c of p = softmax(logits), per example."""
    # From the logarithm: p·ln p is 0, not NaN, where p underflows, and so is its gradient.
    log_p = F.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(1)


def bounded_cross_entropy(probabilities: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of a softmax over *probabilities*: ln Σ_c exp(p_c) − p_y, a range of width one.

    FedCorr's code feeds softmax outputs into a cross-entropy that applies softmax again, and FedDiv
    inherits it.
    """
    return F.cross_entropy(probabilities, y, reduction="none")


def uniform_penalty(logits: Tensor) -> Tensor:
    """KL(uniform ‖ mean prediction of the batch): Σ_c (1/C)·ln((1/C)/q_c)."""
    mean = logits.softmax(1).mean(0).clamp_min(1e-8)  # a class that is never predicted: ln 0 = −∞
    return -(mean.log() + math.log(len(mean))).mean()


def class_counts(y: Tensor, classes: int) -> Tensor:
    """How often each class occurs among labels, int64 [C]."""
    return F.one_hot(y, classes).sum(0)  # bincount reads its size on the host and varies on CUDA


def log_prior(counts: Tensor, tau: float = 1.0) -> Tensor:
    """τ·ln(n_kc / n_k) for each class, to adjust logits by; −∞ for absent ones, which get no gradient."""
    present = counts > 0
    prior = counts.clamp_min(1) / counts.sum()
    return torch.where(present, tau * prior.log(), -math.inf)


# -- predictions ---------------------------------------------------------------------------------------
def sharpen(p: Tensor, temperature: float) -> Tensor:
    """p_c^(1/T) / Σ p_c'^(1/T)."""
    power = p ** (1 / temperature)
    return power / power.sum(1, keepdim=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of vectors along the last dimension, 0 where one of them is zero; the others broadcast."""
    lengths = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    cosines: Tensor = (a * b).sum(-1) / lengths.clamp_min(1e-8)
    return cosines


# -- mixtures ------------------------------------------------------------------------------------------
class Mixture(NamedTuple):
    """A two-component Gaussian mixture over losses, the clean side first."""

    clean_probability: np.ndarray  # [n], posterior of the component with the smaller mean
    means: tuple[float, float]  # smaller first
    variances: tuple[float, float]
    shares: tuple[float, float]


def two_gaussians(
    x: np.ndarray,
    *,
    max_iter: int = 100,
    tol: float = 1e-3,
    reg_covar: float = 1e-6,
    covariance: Covariance = "full",
    seed: int = 0,
) -> Any:
    """scikit-learn's GaussianMixture of two components, fitted to the rows of x [n, d].

    The options are part of a method: with tol=1e-2, as some authors have it, EM stops after about four
    steps, and 1.5 % of the samples are on the other side than after a fit that converged.
    """
    # Imported here: it takes as long as importing torch, and many runs need no mixture.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    options = {"max_iter": max_iter, "tol": tol, "reg_covar": reg_covar, "covariance_type": covariance}
    fit = GaussianMixture(2, random_state=seed % 2**32, **options)  # it takes no larger seeds
    count_work(mixtures=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopping at max_iter is what the papers do
        return fit.fit(x)


def loss_mixture(
    losses: np.ndarray, *, max_iter: int = 100, tol: float = 1e-3, reg_covar: float = 1e-6, seed: int = 0
) -> Mixture | None:
    """Fit a two-component mixture to losses; None where no two groups can be told apart.

    That is: fewer than two values, equal or non-finite values, an empty component or equal means.
    """
    # float64: variances near reg_covar are lost in float32, in which scikit-learn would compute.
    x = np.asarray(losses, dtype=np.float64).reshape(-1, 1)
    if len(x) < 2 or not np.isfinite(x).all() or np.ptp(x) < 1e-6:
        return None
    fit = two_gaussians(x, max_iter=max_iter, tol=tol, reg_covar=reg_covar, seed=seed)
    means = fit.means_[:, 0]
    if min(fit.weights_) <= 0 or means[0] == means[1]:
        return None
    order = np.argsort(means)  # which component is which depends on the seed
    posterior = fit.predict_proba(x)[:, order[0]]
    low, high = (int(i) for i in order)

    def pair(values: np.ndarray) -> tuple[float, float]:
        return float(values[low]), float(values[high])

    return Mixture(posterior, pair(means), pair(fit.covariances_[:, 0, 0]), pair(fit.weights_))


def min_max_scaled(values: np.ndarray) -> np.ndarray | None:
    """Values between 0 and 1 in float64; None where they are all equal or not finite, and say nothing."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.ptp(values) < 1e-6:
        return None
    scaled: np.ndarray = (values - values.min()) / np.ptp(values)
    return scaled


def clean_posterior(losses: np.ndarray) -> np.ndarray | None:
    """DivideMix's posterior of the low-loss component over scaled losses; None where they are all equal."""
    scaled = min_max_scaled(losses)
    if scaled is None:
        return None
    fit = loss_mixture(scaled, max_iter=100, tol=1e-2, reg_covar=5e-4)
    return None if fit is None else fit.clean_probability


# -- MixUp ---------------------------------------------------------------------------------------------
def with_mixup(steps: Sequence[Step], rng: np.random.Generator, alpha: float) -> list[Step]:
    """Note the draws of MixUp on each step: `lam` ~ Beta(α, α) and a permutation `order` of its rows."""
    # One λ for a batch, as in the papers' code. Drawn for `plan`, not in the loss: no step waits for a copy.
    return [
        replace(
            step,
            note={
                **step.note,
                "lam": float(rng.beta(alpha, alpha)),
                "order": torch.from_numpy(rng.permutation(len(step.rows))),
            },
        )
        for step in steps
    ]


def mixed(values: Tensor, lam: float, order: Tensor) -> Tensor:
    """λ·values + (1 − λ)·values[order], for images and soft targets alike."""
    return lam * values + (1 - lam) * values[order]


def mixup_cross_entropy(logits: Tensor, y_a: Tensor, y_b: Tensor, lam: float) -> Tensor:
    """λ·CE(z, y_a) + (1 − λ)·CE(z, y_b) per example."""
    first, second = (F.cross_entropy(logits, y, reduction="none") for y in (y_a, y_b))
    return lam * first + (1 - lam) * second


# -- small losses --------------------------------------------------------------------------------------
def kept_count(size: int, forget: float) -> int:
    """⌊(1 − f)·b⌋ of a batch, at least one."""
    return max(1, int((1 - forget) * size + 1e-9))  # (1 − 0.8)·5 comes out below 1


def small_loss(losses: Tensor, count: int) -> Tensor:
    """The `count` smallest losses as a mask [B]; of equal ones the first."""
    # A stable sort, not topk, whose choice among equal losses is left open and differs between devices.
    order = losses.detach().argsort(stable=True)
    return torch.zeros_like(order, dtype=torch.bool).index_fill(0, order[:count], True)


def mean_of_kept(losses: Tensor, kept: Tensor) -> Tensor:
    """Per-example terms [B] whose mean is the mean of the kept losses; zero if none is kept."""
    # losses[kept] would be shorter, but its size must be known on the host: every step would wait.
    return torch.where(kept, losses, 0.0) * (len(losses) / kept.sum().clamp_min(1))


# -- the forget rate of Co-teaching --------------------------------------------------------------------
def forget_rate(t: int, tau: float, ramp_rounds: int, exponent: float = 1.0) -> float:
    """f_t = τ^c·t/(T_k − 1) for t < T_k, then τ: the published code's form, in which round 0 keeps all."""
    return tau**exponent * t / max(1, ramp_rounds - 1) if t < ramp_rounds else tau


def forget_ramp(rounds: int, longest: int = 25) -> int:
    """T_k: a fifth of the rounds, at least three, so that networks learn before they drop."""
    return min(longest, max(3, round(0.2 * rounds)))


def final_forget_rate(given: float | None, terms: Terms) -> float:
    """τ as given, or as the setting announces it; the highest allowed where nothing would be kept."""
    tau = terms.expected_noise if given is None else given
    return HIGHEST_FORGET_RATE if tau >= 1 else tau


def check_forget_rate(given: float | None, terms: Terms, method: str) -> None:
    """Refuse a hyper-parameter `forget_rate` that is unknown or negative; warn of one that is lowered."""
    tau = terms.expected_noise if given is None else given
    if math.isnan(tau):
        raise BadInput(
            f"{method} must know which share of the labels to drop, and natural noise announces none: "
            "give --set forget_rate=SHARE (Clothing1M: 0.39)"
        )
    if tau < 0:
        raise BadInput(f"--set forget_rate={tau:g}: {method} expects a share, 0 or more")
    if tau >= 1:
        warnings.warn(
            f"{method}: a forget rate of {tau:g} drops every label, {HIGHEST_FORGET_RATE} is used",
            stacklevel=2,
        )


# -- rounds --------------------------------------------------------------------------------------------
def linear_ramp(t: float, begin: float, length: float) -> float:
    """From 0 at `begin` to 1 after `length` rounds."""
    return min(max((t - begin) / length, 0.0), 1.0)


def warmup_rounds(share: float, terms: Terms) -> int:
    """A share of the rounds, at least three and as many as it takes to call every client once."""
    return max(3, round(share * terms.rounds), terms.rounds_for_all)


def history_length(longest: int, shortest: int, begin: int, terms: Terms) -> int:
    """How many outputs a sample's history holds: those that a typical client has at round `begin`."""
    visits = begin * terms.sampled // terms.clients
    return min(longest, max(shortest, terms.epochs * visits))


def clients_in_turn(server: Server, name: str) -> list[int]:
    """The clients of this round where all take turns: the next m of a permutation.

    Once everyone has been called, another permutation is drawn from the server's stream of that name.
    """
    terms = server.terms
    one_pass, turn = divmod(server.round, terms.rounds_for_all)
    # Drawn again in every round of a pass instead of being kept: nothing to checkpoint.
    order = server.stream(name, one_pass).permutation(terms.clients)
    return [int(k) for k in order[turn * terms.sampled : (turn + 1) * terms.sampled]]
