"""Instance-dependent noise (`inst`): the image decides which wrong label it gets.

Xia et al., Part-dependent label noise, NeurIPS 2020. The paper applies it to a whole data set; here each
noisy client has its own ratio.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from flnl_bench.random_streams import stream
from flnl_bench.scenario.options import Option, number, one_of
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, draw_classes, mean_over_range, softmax

SPREAD = 0.1  # standard deviation of the samples' flip rates around ρ
_NORMAL = NormalDist()


def flip_rates(ratio: float, uniform: np.ndarray) -> np.ndarray:
    """Turn uniform draws into q: normal draws around ρ, truncated to [0, 1]."""
    low, high = _NORMAL.cdf(-ratio / SPREAD), _NORMAL.cdf((1 - ratio) / SPREAD)
    chance = np.clip(low + uniform * (high - low), 1e-300, 1 - 2**-53)  # inv_cdf needs (0, 1)
    return np.clip(ratio + SPREAD * np.array([_NORMAL.inv_cdf(float(p)) for p in chance]), 0, 1)


def mean_flip_rate(ratio: float) -> float:
    """Return the mean of q, which differs slightly from ρ; clients with ρ = 0 are clean."""
    if ratio == 0:
        return 0.0
    a, b = -ratio / SPREAD, (1 - ratio) / SPREAD
    return ratio + SPREAD * (_NORMAL.pdf(a) - _NORMAL.pdf(b)) / (_NORMAL.cdf(b) - _NORMAL.cdf(a))


def wrong_class_chances(projected: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return g: the softmax of the projected images [n, C] over all classes but the true one."""
    projected = projected.copy()
    projected[np.arange(len(true)), true] = -np.inf
    return softmax(projected)


def label_chances(wrong: np.ndarray, true: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return P: q·g for the wrong classes, 1 − q for the true class."""
    chances: np.ndarray = wrong * rates[:, None]
    chances[np.arange(len(true)), true] = 1 - rates
    return chances


def project(client: NoisyClient, seed: int) -> np.ndarray:
    """Return g of all samples, float64 [n, C], from x·W with a standard normal W [d, C] for each true class.

    It computes one class at a time: for 100 classes of 32×32 colour images, all W have 30 million numbers.
    """
    images, scale = client.dataset.train_x, client.options["scale"] / 255
    centre = images.mean(axis=0).ravel() if client.options["centre"] else 0.0
    wrong = np.empty((len(client.true), client.classes))
    for label in np.unique(client.true):
        places = np.flatnonzero(client.true == label)
        pixels = images[client.rows[places]].reshape(len(places), -1) - centre
        rng = stream(seed, "scenario", "noise", "inst", client.dataset.family, int(label))
        weights = rng.standard_normal((pixels.shape[1], client.classes))
        wrong[places] = wrong_class_chances(pixels * scale @ weights, client.true[places])
    return wrong


def share_projection(everyone: NoisyClient) -> np.ndarray | None:
    """Return g of all rows of the data set; None if each client has its own projection."""
    if everyone.options["projection"] == "client":
        return None
    wrong = np.zeros((len(everyone.dataset.train_y), everyone.classes))
    wrong[everyone.rows] = project(everyone, everyone.seed)
    return wrong


def instance_labels(client: NoisyClient) -> np.ndarray:
    """Draw each label by its image and its own flip rate."""
    if client.ratio == 0:
        return client.true  # the mean of q at ρ = 0 is 0.08
    rates = flip_rates(client.ratio, client.rng.random(len(client.true)))
    if client.shared is None:
        wrong = project(client, int(client.rng.integers(2**63)))
    else:
        wrong = client.shared[client.rows]
    return draw_classes(label_chances(wrong, client.true, rates), client.rng)


INSTANCE = NoiseKind(
    "inst",
    "the wrong class by a random projection of the image (Xia et al. 2020)",
    instance_labels,
    expected=lambda setting: setting.phi * mean_over_range(setting, mean_flip_rate),
    options=(
        Option(
            "projection", "shared by all clients, or one per client", one_of("shared", "client"), "shared"
        ),
        Option("scale", "the brightest pixel; below 255 the image decides less", number(0.001, 1e6), 255.0),
        Option("centre", "true or false: subtract the mean training image", one_of(True, False), False),
    ),
    prepare=share_projection,
)
