"""Noise near the decision boundary (`pmd`): poly-margin diminishing, in a simple form.

Zhang et al., Learning with feature-dependent label noise, ICLR 2021. A sample gets its most likely wrong
class, more often if its margin is smaller; here always from the true label, at the client's ratio.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.errors import BadInput
from flnl_bench.scenario.options import Option, file, one_of
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, softmax

CERTAINTY = 0.8  # mean of the highest built-in score of each sample
SCORE_SUM_TOLERANCE = 1e-3  # largest difference between the sum of a row of scores and one
COMPARED_AT_ONCE = 1024  # images as floats; all of them would need too much memory
MARGIN_SHAPES: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda margin: (1 - margin**2) / 2,
    2: lambda margin: 1 - margin**3,
    3: lambda margin: 1 - (margin + margin**2 + margin**3) / 3,
}


def rival_and_margin(scores: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return s, the most likely wrong class of each sample, and Δ = max(0, η_y − η_s)."""
    places, others = np.arange(len(true)), scores.copy()
    others[places, true] = -1
    rival = others.argmax(axis=1)
    return rival, np.maximum(0, scores[places, true] - scores[places, rival])


def flip_chances(shape: np.ndarray, ratio: float) -> np.ndarray:
    """Return min(1, κ·shape), with κ so that the mean is ρ, or the largest mean that can be reached."""
    if ratio >= (shape > 0).mean():
        return (shape > 0).astype(np.float64)
    return np.minimum(1, shape * bisect(lambda factor: np.minimum(1, shape * factor).mean() < ratio))


def bisect(too_small: Callable[[float], bool]) -> float:
    """Return the positive number at which `too_small` becomes false."""
    low, high = 2.0**-300, 2.0**300
    for _ in range(60):  # halves the range of the logarithm, down to the precision of a float
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def scores_of(everyone: NoisyClient) -> np.ndarray:
    """Return η of all train images, float64 [N, C]: from the file, or softmax of −‖x − μ_c‖²/h."""
    dataset, size = everyone.dataset, len(everyone.dataset.train_y)
    if everyone.options["scores"] is not None:
        scores = everyone.array("scores", size, everyone.classes)
        sums = scores.sum(axis=1)
        if (bad := np.flatnonzero(np.abs(sums - 1) > SCORE_SUM_TOLERANCE)).size:
            where = f"setting {everyone.setting.name!r}: scores"
            raise BadInput(f"{where}: row {bad[0]} sums to {sums[bad[0]]:.6g}, not to 1")
        return scores
    distances = distances_to_means(dataset)
    width = bisect(lambda width: softmax(-distances / width).max(axis=1).mean() > CERTAINTY)
    return softmax(-distances / width)


def distances_to_means(dataset: Dataset) -> np.ndarray:
    """Return ‖x − μ_c‖² of all train images from the class means μ_c, float64 [N, C]."""
    images, labels = dataset.train_x, dataset.train_y
    distances = np.full((len(images), len(dataset.classes)), np.inf)  # of a class without images
    present = np.unique(labels)
    means = np.stack([images[labels == label].mean(axis=0).ravel() for label in present])
    for start in range(0, len(images), COMPARED_AT_ONCE):
        pixels = images[start : start + COMPARED_AT_ONCE].reshape(-1, means.shape[1]).astype(np.float64)
        squares = (pixels**2).sum(axis=1, keepdims=True) + (means**2).sum(axis=1)
        distances[start : start + COMPARED_AT_ONCE, present] = squares - 2 * pixels @ means.T
    return distances


def margin_labels(client: NoisyClient) -> np.ndarray:
    """Give each sample its most likely wrong class, with a chance that falls with the margin."""
    rival, margin = rival_and_margin(client.shared[client.rows], client.true)
    shape = MARGIN_SHAPES[client.options["type"]](margin)
    if client.ratio > (shape > 0).mean():
        name = client.setting.name
        warnings.warn(f"setting {name!r}: too few samples near the boundary for some ratios", stacklevel=2)
    flips = client.rng.random(len(client.true)) < flip_chances(shape, client.ratio)
    return np.where(flips, rival, client.true)


MARGIN = NoiseKind(
    "pmd",
    "the most likely wrong class, near the decision boundary (Zhang et al. 2021)",
    margin_labels,
    options=(
        Option(
            "type", "1, 2 or 3: the function by which the chance falls with the margin", one_of(1, 2, 3), 1
        ),
        Option(
            "scores",
            "N×C class scores of all train images, .npy; default: from the distances to class means",
            file,
        ),
    ),
    prepare=scores_of,
)
