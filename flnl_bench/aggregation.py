"""Models of several clients made one: the weighted mean, and means that single models cannot decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from flnl_bench.api import Update


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
