"""Functions for several methods: weights, robust means, losses, mixtures, MixUp, small losses, schedules.

Methods import from here, never from another method.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl_bench.engine.ledger import count_work as count_work
from flnl_bench.errors import BadInput

if TYPE_CHECKING:
    from flnl_bench.api import Server, Step, Terms, Update

Covariance = Literal["full", "diag", "spherical"]  # of a mixture's components

HIGHEST_FORGET_RATE = 0.95  # with 1 there would be no sample to learn from


# -- weights -------------------------------------------------------------------------------------------
@torch.no_grad()
def average(weights: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of models, with BatchNorm statistics; shares need not sum to one."""
    total = float(sum(shares))
    # The product makes new tensors, so no model changes; the others are added in place, with one kernel per
    # model instead of one per tensor.
    mean = {name: tensor * (shares[0] / total) for name, tensor in weights[0].items()}
    for model, share in zip(weights[1:], shares[1:], strict=True):
        torch._foreach_add_(list(mean.values()), [model[name] for name in mean], alpha=share / total)
    return mean


def is_finite(weights: Mapping[str, Tensor]) -> bool:
    """Return whether no weight is NaN or infinite; not for use in a step, because it waits for the device."""
    return _are_finite([weights])[0]


def finite_updates(updates: Sequence[Update]) -> list[Update]:
    """Return the updates without a NaN or infinite weight; it waits for the device once if all are finite."""
    flags = _are_finite([update.weights for update in updates]) if updates else []
    return [update for update, finite in zip(updates, flags, strict=True) if finite]


@torch.no_grad()
def _are_finite(models: Sequence[Mapping[str, Tensor]]) -> list[bool]:
    # One kernel for all tensors takes an eighth of the time. A finite norm has only finite parts; the norm of
    # large finite weights may overflow, so models with an infinite norm are checked again.
    models_tensors = [
        [t for t in model.values() if t.is_floating_point() or t.is_complex()] for model in models
    ]
    tensors = [tensor for own in models_tensors for tensor in own]
    flags = iter(torch.stack(torch._foreach_norm(tensors)).isfinite().tolist() if tensors else ())
    return [
        all(list(islice(flags, len(own)))) or all(torch.isfinite(tensor).all() for tensor in own)
        for own in models_tensors
    ]


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


@torch.no_grad()
def add_pull(weights: list[Tensor], anchors: list[Tensor], strength: float, *, squared: bool = True) -> None:
    """Add the gradient of a proximal term to `w.grad` of all weights, in `on_gradient`.

    The term is ½·strength·Σ‖w − w_a‖² or, if not squared, strength·√Σ‖w − w_a‖². As a part of the loss it
    would cost a third of a step of a small network.
    """
    gradients = []
    for w in weights:
        if (gradient := w.grad) is None:
            gradient = w.grad = torch.zeros_like(w)
        gradients.append(gradient)
    gaps = torch._foreach_sub(weights, anchors)
    if not squared:  # the gradient of the norm is a unit vector, zero at zero
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gaps)))
        torch._foreach_div_(gaps, (length.square() + 1e-12).sqrt())
    torch._foreach_add_(gradients, gaps, alpha=strength)


# -- robust means -------------------------------------------------------------------------------------- Each
# has the signature of `average`. Only the geometric median uses the shares: the others are published without
# weights.
Models = Sequence[Mapping[str, Tensor]]
Rule = Callable[[Models, Sequence[float]], dict[str, Tensor]]
Aggregator = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum", "rfa"]

STATISTICS = ("running_mean", "running_var")  # ends of names; too large for distances


def combined(updates: Sequence[Update], rule: Rule, otherwise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Aggregate the finite models of a round by a rule; return `otherwise` if there are none."""
    sound = finite_updates(updates)
    return rule([u.weights for u in sound], [u.size for u in sound]) if sound else dict(otherwise)


def distrusted(count: int, share: float, least: int) -> int:
    """Return f = ⌊share·m⌋ of m = `count` models, at most such that 2f + `least` ≤ m."""
    return max(0, min(int(share * count + 1e-9), (count - least) // 2))


def coordinate_median(weights: Models, shares: Sequence[float] = ()) -> dict[str, Tensor]:
    """Return the median of every coordinate; for an even number of models, the mean of the middle two."""
    return _middle_mean(weights, (len(weights) - 1) // 2)


def trimmed_mean(weights: Models, shares: Sequence[float] = (), distrust: float = 0.3) -> dict[str, Tensor]:
    """Return the mean of every coordinate without its f smallest and f largest values."""
    return _middle_mean(weights, distrusted(len(weights), distrust, least=1))


def krum(
    weights: Models, shares: Sequence[float] = (), distrust: float = 0.3, selected: int | None = 1
) -> dict[str, Tensor]:
    """Return the mean of the `selected` models (None: m − f − 2) with the smallest scores.

    A score is the sum of squared distances to the m − f − 2 nearest other models; the first of equal scores
    wins. One or two models are averaged.
    """
    count = len(weights)
    if count < 3:
        return average(weights, [1] * count)
    near = count - distrusted(count, distrust, least=3) - 2
    pairs = [_squared_distance(a, b) for a, b in combinations(weights, 2)]
    distances = pairs[0].new_zeros(count, count)
    for (i, j), distance in zip(combinations(range(count), 2), pairs, strict=True):
        distances[i, j] = distances[j, i] = distance
    scores = distances.sort(1).values[:, 1 : near + 1].sum(1)  # column 0 is the distance to itself
    chosen = sorted(scores.argsort(stable=True)[: near if selected is None else selected].tolist())
    return average([weights[k] for k in chosen], [1] * len(chosen))


def geometric_median(
    weights: Models, shares: Sequence[float], steps: int = 3, floor: float = 1e-6
) -> dict[str, Tensor]:
    """Approximate the model with the least weighted sum of distances: steps of Weiszfeld from the mean."""
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
    """Return the mean of every coordinate without its `drop` smallest and largest values."""
    kept, middle = slice(drop, len(weights) - drop), {}
    for name, first in weights[0].items():
        values = torch.stack([model[name] for model in weights]).sort(0).values
        # Keep the memory layout of the models: in another one, networks round differently.
        middle[name] = torch.empty_like(first).copy_(values[kept].mean(0))
    return middle


@torch.no_grad()
def _squared_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """Return ‖θ − θ'‖² without BatchNorm statistics, summed in float64."""
    names = [name for name in one if not name.endswith(STATISTICS)]
    differences = [one[name] - other[name] for name in names]
    if differences[0].device.type == "mps":  # it has no float64
        differences = [difference.cpu() for difference in differences]
    return torch.stack([difference.double().square().sum() for difference in differences]).sum()


# -- losses --------------------------------------------------------------------------------------------
def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ_c target_c · log softmax(logits)_c per example; the target need not sum to one."""
    return F.cross_entropy(logits, target, reduction="none")


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


def reverse_cross_entropy(logits: Tensor, y: Tensor, floor: float) -> Tensor:
    """−Σ_c p_c·ln q_c of a one-hot q whose zeros are taken for `floor`: −ln(floor)·Σ_{c≠y} p_c."""
    others = logits.softmax(1).clamp(1e-7, 1).scatter(1, y.unsqueeze(1), 0.0)
    return -math.log(floor) * others.sum(1)


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
    """Return the count of each class among labels, int64 [C]."""
    return F.one_hot(y, classes).sum(0)  # bincount reads its size on the host and varies on CUDA


def log_prior(counts: Tensor, tau: float = 1.0) -> Tensor:
    """Return τ·ln(n_kc / n_k) per class, for logit adjustment; −∞ for absent classes, without a gradient."""
    present = counts > 0
    prior = counts.clamp_min(1) / counts.sum()
    return torch.where(present, tau * prior.log(), -math.inf)


# -- predictions ---------------------------------------------------------------------------------------
def sharpen(p: Tensor, temperature: float) -> Tensor:
    """p_c^(1/T) / Σ p_c'^(1/T)."""
    power = p ** (1 / temperature)
    return power / power.sum(1, keepdim=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of vectors along the last dimension, 0 for zero vectors; the others broadcast."""
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
    x: np.ndarray, *, max_iter: int = 100, covariance: Covariance = "full", seed: int = 0, n_init: int = 1
) -> Any:
    """Fit scikit-learn's GaussianMixture of two components to the rows of x [n, d]."""
    # Imported here: the import takes as long as that of torch, and many runs need no mixture.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    options = {"max_iter": max_iter, "covariance_type": covariance, "n_init": n_init}
    fit = GaussianMixture(2, random_state=seed % 2**32, **options)  # its largest seed
    count_work(mixtures=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopping at max_iter is what the papers do
        return fit.fit(x)


def loss_mixture(
    losses: np.ndarray, *, max_iter: int = 100, tol: float = 1e-3, reg_covar: float = 1e-6, seed: int = 0
) -> Mixture | None:
    """Fit a two-component mixture to losses; return None if there are no two groups.

    That is: fewer than two values, equal or non-finite values, an empty component or equal means. The options
    are part of a method: with some authors' tol=1e-2, EM stops after about four steps, and 1.5 % of the
    samples are in the other component than after convergence.
    """
    # The steps of scikit-learn's GaussianMixture, whose own checks take five times as long for a client's
    # losses; a test compares them. Only values at equal distances, where rounding decides, can differ. In
    # float32, variances near reg_covar would be lost.
    x = np.asarray(losses, dtype=np.float64).ravel()
    if len(x) < 2 or not np.isfinite(x).all() or np.ptp(x) < 1e-6:
        return None
    count_work(mixtures=1)
    in_second = _two_means(x, seed)
    components = _maximised(x, np.stack([~in_second, in_second]).astype(np.float64), reg_covar)
    likelihood = -math.inf
    for _ in range(max_iter):
        before = likelihood
        likelihood, posterior = _expected(x, components)
        components = _maximised(x, posterior, reg_covar)
        if abs(likelihood - before) < tol:
            break
    shares, means, variances = components
    if min(shares) <= 0 or means[0] == means[1]:
        return None
    low, high = (int(i) for i in np.argsort(means))  # the order of components depends on the seed

    def pair(values: np.ndarray) -> tuple[float, float]:
        return float(values[low]), float(values[high])

    return Mixture(_expected(x, components)[1][low], pair(means), pair(variances), pair(shares))


def _expected(x: np.ndarray, components: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean log-likelihood of values [n], and the posterior of both components [2, n]."""
    shares, means, variances = components[:, :, None]
    log_p = np.log(shares) - 0.5 * np.log(2 * math.pi * variances) - (x - means) ** 2 / (2 * variances)
    total = np.logaddexp(*log_p)
    return float(total.mean()), np.exp(log_p - total)


def _maximised(x: np.ndarray, posterior: np.ndarray, floor: float) -> np.ndarray:
    """Return shares, means and variances [3, 2] of both components; `floor` is added to the variances."""
    mass = posterior.sum(1) + 10 * np.finfo(np.float64).eps
    means = posterior @ x / mass
    variances = (posterior * (x - means[:, None]) ** 2).sum(1) / mass + floor
    return np.stack([mass / mass.sum(), means, variances])


def _two_means(x: np.ndarray, seed: int) -> np.ndarray:
    """Return which values [n] are in the second of two clusters, by k-means."""
    x = x - x.mean()
    first, second = _two_centres(x, np.random.RandomState(seed % 2**32))  # its largest seed
    before = None
    for _ in range(300):
        in_second: np.ndarray = np.abs(x - second) < np.abs(x - first)
        if before is not None and (in_second == before).all():
            break
        moved = first - x[~in_second].mean(), second - x[in_second].mean()
        first, second, before = first - moved[0], second - moved[1], in_second
        if np.square(moved).sum() <= 1e-4 * x.var():
            in_second = np.abs(x - second) < np.abs(x - first)
            break
    return in_second


def _two_centres(x: np.ndarray, rng: np.random.RandomState) -> tuple[float, float]:
    """Return the first centres by greedy k-means++, with the draws of scikit-learn."""
    first = x[rng.choice(len(x), p=np.full(len(x), 1 / len(x)))]
    distances = (x - first) ** 2
    sums = np.cumsum(distances)
    candidates = x[np.searchsorted(sums, rng.uniform(size=2) * sums[-1]).clip(max=len(x) - 1)]
    left = np.minimum(distances, (x - candidates[:, None]) ** 2).sum(1)
    return float(first), float(candidates[left.argmin()])


def min_max_scaled(values: np.ndarray) -> np.ndarray | None:
    """Scale values to 0…1 in float64; return None if they are all equal or one is not finite."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.ptp(values) < 1e-6:
        return None
    scaled: np.ndarray = (values - values.min()) / np.ptp(values)
    return scaled


def clean_posterior(losses: np.ndarray) -> np.ndarray | None:
    """Return DivideMix's posterior of the low-loss component over scaled losses; None if all are equal."""
    scaled = min_max_scaled(losses)
    if scaled is None:
        return None
    fit = loss_mixture(scaled, max_iter=100, tol=1e-2, reg_covar=5e-4)
    return None if fit is None else fit.clean_probability


# -- MixUp ---------------------------------------------------------------------------------------------
def with_mixup(steps: Sequence[Step], rng: np.random.Generator, alpha: float) -> list[Step]:
    """Note the draws of MixUp on each step: `lam` ~ Beta(α, α) and a permutation `order` of its rows."""
    # One λ per batch, as in the papers' code. Drawn in `plan` instead of the loss, so no step waits for a
    # copy.
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
    return values.index_select(0, order).lerp(values, lam)


def mixup_cross_entropy(logits: Tensor, y_a: Tensor, y_b: Tensor, lam: float) -> Tensor:
    """λ·CE(z, y_a) + (1 − λ)·CE(z, y_b) per example."""
    log_p = F.log_softmax(logits, dim=1)
    first, second = (F.nll_loss(log_p, y, reduction="none") for y in (y_a, y_b))
    return second.lerp(first, lam)


# -- small losses --------------------------------------------------------------------------------------
def kept_count(size: int, forget: float) -> int:
    """⌊(1 − f)·b⌋ of a batch, at least one."""
    return max(1, int((1 - forget) * size + 1e-9))  # (1 − 0.8)·5 comes out below 1


def small_loss(losses: Tensor, count: int) -> Tensor:
    """Return a mask [B] of the `count` smallest losses; the first of equal losses wins."""
    # A stable sort: the choice of topk among equal losses differs between devices.
    order = losses.detach().argsort(stable=True)
    return torch.zeros_like(order, dtype=torch.bool).index_fill(0, order[:count], True)


def mean_of_kept(losses: Tensor, kept: Tensor) -> Tensor:
    """Return per-example terms [B] whose mean is the mean of the kept losses; zero if none is kept."""
    # losses[kept] would be shorter, but every step would wait for its size.
    return torch.where(kept, losses, 0.0) * (len(losses) / kept.sum().clamp_min(1))


# -- the sieve of CORES² ---------------------------------------------------------------------------------
def mean_class_loss(logits: Tensor) -> Tensor:
    """s(z) = mean_c −ln(p_c + 1e-8) per example: the mean loss over all labels, which 1e-8 bounds."""
    return -(logits.softmax(1) + 1e-8).log().mean(1)


def sieve_rounds(given: int | None, terms: Terms) -> int:
    """Return T_s as given, or a fifth of the rounds, at least 3 and at most 10: until then all is kept."""
    return min(10, max(3, round(0.2 * terms.rounds))) if given is None else given


def confidence_weight(epoch: int, rounds: int, epochs: int) -> float:
    """Return β/β_max in a local epoch, counted from round 0: linear from round T_s/5 on, for T_s rounds."""
    return linear_ramp(epoch, epochs * (rounds // 5), max(1, epochs * rounds - 1))


# -- the forget rate of Co-teaching --------------------------------------------------------------------
def forget_rate(t: int, tau: float, ramp_rounds: int, exponent: float = 1.0) -> float:
    """f_t = τ^c·t/(T_k − 1) for t < T_k, then τ, as in the published code; round 0 keeps all samples."""
    return tau**exponent * t / max(1, ramp_rounds - 1) if t < ramp_rounds else tau


def forget_ramp(rounds: int, longest: int = 25) -> int:
    """Return T_k: a fifth of the rounds, at least three, so that networks learn before they drop samples."""
    return min(longest, max(3, round(0.2 * rounds)))


def final_forget_rate(given: float | None, terms: Terms) -> float:
    """Return τ as given or announced by the setting; HIGHEST_FORGET_RATE if no sample would be kept."""
    tau = terms.expected_noise if given is None else given
    return HIGHEST_FORGET_RATE if tau >= 1 else tau


def check_forget_rate(given: float | None, terms: Terms, method: str) -> None:
    """Refuse a `forget_rate` that is unknown or negative; warn if it is lowered."""
    tau = terms.expected_noise if given is None else given
    if math.isnan(tau):
        raise BadInput(
            f"{method} needs the share of labels to drop, and natural noise announces none: "
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
    """Return a value that rises linearly from 0 at `begin` to 1 after `length` rounds."""
    return min(max((t - begin) / length, 0.0), 1.0)


def warmup_rounds(share: float, terms: Terms) -> int:
    """Return a share of the rounds, at least three and at least ⌈K/m⌉, a visit of every client."""
    return max(3, round(share * terms.rounds), terms.rounds_for_all)


def history_length(longest: int, shortest: int, begin: int, terms: Terms) -> int:
    """Return the length of a sample's history: the outputs that a typical client has at round `begin`."""
    visits = begin * terms.sampled // terms.clients
    return min(longest, max(shortest, terms.epochs * visits))


def clients_in_turn(server: Server, name: str) -> list[int]:
    """Return the clients of this round when all take turns: the next m of a permutation.

    After a visit of all clients, a new permutation is drawn from the server's stream `name`.
    """
    terms = server.terms
    one_pass, turn = divmod(server.round, terms.rounds_for_all)
    # Drawn again in every round of a pass, so that there is nothing to checkpoint.
    order = server.stream(name, one_pass).permutation(terms.clients)
    return [int(k) for k in order[turn * terms.sampled : (turn + 1) * terms.sampled]]
