"""What repeated runs can show, and what they cannot; pure functions of numbers.

Scores are arrays [methods, settings, seeds], higher is better, NaN where a run is missing. A setting and a
seed are one scenario for all methods, so that methods are compared pair by pair. NumPy and SciPy are imported
when they are needed.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Numbers: TypeAlias = np.ndarray[Any, Any]

DRAWS = 4000  # of the bootstrap
FEWEST_SETTINGS = 5  # that are drawn; fewer say too little about others, and stand for themselves
LEVEL, PLACE_LEVEL = 0.95, 0.90  # of intervals of differences, and of places
SIGNIFICANCE, POWER = 0.05, 0.80  # of a detectable difference
LEAST_PAIRS = 6  # below six pairs no outcome of the Wilcoxon test reaches 5 %
MOST_SEEDS = 100_000


def mean_std(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation (ddof 1); None if a value is unknown or they are too few."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    if not numbers or len(numbers) < len(known):
        return None, None
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


# -- paired hierarchical bootstrap -------------------------------------------------------------------
class Draws(NamedTuple):
    """Averages over settings and seeds that were drawn with replacement."""

    means: Numbers  # [methods], of the runs themselves
    drawn: Numbers  # [draws, methods]
    stretch: Numbers  # [methods, methods], of the difference of two methods: makes its variance unbiased
    common_stretch: float  # the same for all methods together
    freedom: int  # degrees of freedom

    def widened(self, level: float) -> float:
        """Return t / z: percentiles of few units are too narrow, as z is where t is right."""
        share = (1 + level) / 2
        return t_quantile(share, self.freedom) / statistics.NormalDist().inv_cdf(share)


def resample(scores: Numbers, draws: int = DRAWS, seed: int = 0) -> Draws | None:
    """Draw settings with replacement, then seeds of each drawn setting, the same ones for all methods.

    Fewer than FEWEST_SETTINGS are not drawn: the statements are about these settings. A method without a
    drawn seed keeps its mean of the setting. None if there is nothing to draw: one seed of few settings.
    """
    import numpy as np

    methods, settings, _ = scores.shape
    known = np.isfinite(scores)
    seeds: Numbers = np.asarray(known.any(0))  # [settings, seeds]
    several = settings >= FEWEST_SETTINGS
    freedom = settings - 1 if several else int((seeds.sum(1) - 1).sum())
    if freedom < 1 or methods < 1:
        return None
    picked, counts = _drawn_counts(tuple(map(tuple, seeds.tolist())), several, draws, seed)
    values = np.where(known, scores, 0.0)
    cells = values.sum(2) / known.sum(2)  # [methods, settings]
    drawn = np.zeros((draws, methods))
    for place, times in enumerate(counts):  # [draws, seeds]
        count = times @ known[:, place].T
        total = times @ values[:, place].T
        mean = np.where(count > 0, total / np.maximum(count, 1), cells[:, place])
        drawn += picked[:, place, None] * mean
    stretch, common = _stretch(scores, cells, several)
    return Draws(cells.mean(1), drawn / settings, stretch, common, freedom)


@functools.lru_cache(maxsize=4)  # the comparisons of one table have the same draws
def _drawn_counts(
    seeds: tuple[tuple[bool, ...], ...], several: bool, draws: int, seed: int
) -> tuple[Numbers, list[Numbers]]:
    """Return how often each setting is drawn, [draws, settings], and how often its seeds, [draws, seeds].

    Args:
        seeds: the seeds that each setting has.
        several: settings are drawn.
        draws: the number of draws.
        seed: of the random numbers.
    """
    import numpy as np

    rng, settings = np.random.default_rng(seed), len(seeds)
    picked = np.ones((draws, settings), int)
    if several:
        picked = rng.multinomial(settings, np.full(settings, 1 / settings), size=draws)
    counts = [
        rng.multinomial(picked[:, place] * sum(there), np.array(there) / sum(there))
        for place, there in enumerate(seeds)
    ]
    return picked, counts


def _stretch(scores: Numbers, cells: Numbers, several: bool) -> tuple[Numbers, float]:
    """Return the factors between the standard error of a difference and the deviation of its draws.

    Draws of n units have the variance of a population, (n − 1) / n of the unbiased one; drawn seeds add
    their noise to settings whose means have it already.
    """
    import numpy as np

    settings = cells.shape[1]
    known = np.isfinite(scores)
    residuals = np.where(known, scores - cells[:, :, None], 0.0).transpose(
        1, 0, 2
    )  # [settings, methods, seeds]
    there = known.transpose(1, 0, 2).astype(float)
    pairs = there @ there.transpose(0, 2, 1)  # [settings, methods, methods]
    noise = _of_differences(residuals @ residuals.transpose(0, 2, 1) / np.maximum(pairs - 1, 1))
    pairs = np.maximum(pairs, 1)
    right = (noise / pairs).sum(0) / settings**2
    drawn = (noise / pairs * (pairs - 1) / pairs).sum(0) / settings**2
    if several:
        right = _of_differences(np.cov(cells).reshape(len(cells), len(cells))) / settings
        drawn = drawn + right * (settings - 1) / settings
    stretch = np.sqrt(np.divide(right, drawn, out=np.ones_like(right), where=drawn > 1e-12))
    common = float(np.sqrt(right.sum() / drawn.sum())) if drawn.sum() > 1e-12 else 1.0
    return stretch, common


def _of_differences(covariance: Numbers) -> Numbers:
    """Return the variances of all differences of two methods from their covariances."""
    import numpy as np

    own = np.diagonal(covariance, axis1=-2, axis2=-1)
    return np.asarray(np.maximum(own[..., :, None] + own[..., None, :] - 2 * covariance, 0.0))


def difference_intervals(draws: Draws, method: int, level: float = LEVEL) -> Numbers:
    """Return low and high of the differences of one method to every method, [2, methods]."""
    import numpy as np

    differences = draws.drawn[:, [method]] - draws.drawn
    means = draws.means[method] - draws.means
    ends = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.asarray(means + draws.stretch[method] * draws.widened(level) * (ends - means))


def distinguishable(draws: Draws, level: float = LEVEL) -> Numbers:
    """Return for each pair of methods whether the interval of their difference excludes 0."""
    import numpy as np

    rows = []
    for method in range(len(draws.means)):
        low, high = difference_intervals(draws, method, level)
        rows.append((low > 1e-9) | (high < -1e-9))
    apart = np.array(rows)
    return np.asarray(apart & apart.T)


def drawn_places(draws: Draws, level: float = PLACE_LEVEL) -> tuple[Numbers, Numbers, Numbers]:
    """Return the lowest and highest place of each method at this level, and its probability of being first.

    Methods that tie have all places that they share, and share the probability of being first.
    """
    import numpy as np

    stretch = draws.common_stretch * draws.widened(level)
    drawn = np.round(draws.means + stretch * (draws.drawn - draws.means), 9)
    better = np.stack([(drawn > column[:, None]).sum(1) for column in drawn.T], 1)
    equal = np.stack([(drawn == column[:, None]).sum(1) for column in drawn.T], 1)
    low = np.quantile(better + 1, (1 - level) / 2, axis=0, method="inverted_cdf")
    high = np.quantile(better + equal, (1 + level) / 2, axis=0, method="inverted_cdf")
    return low.astype(int), high.astype(int), ((better == 0) / equal).mean(0)


def tie_letters(order: Sequence[int], apart: Numbers) -> dict[int, str]:
    """Give letters to methods, best first: two share a letter if and only if they tie.

    Insert and absorb (Piepho 2004): every pair that is apart splits the groups that hold both.
    """
    groups: list[frozenset[int]] = [frozenset(order)]
    for i, one in enumerate(order):
        for other in order[i + 1 :]:
            if not apart[one, other]:
                continue
            split = [group - {gone} for group in groups if {one, other} <= group for gone in (one, other)]
            kept = [group for group in groups if not {one, other} <= group]
            for group in sorted(split, key=len, reverse=True):
                if not any(group <= larger for larger in kept):
                    kept.append(group)
            groups = kept
    place = {method: i for i, method in enumerate(order)}
    groups.sort(key=lambda group: sorted(place[method] for method in group))
    names = [_letter(number) for number in range(len(groups))]
    return {
        method: _joined([i for i, group in enumerate(groups) if method in group], names) for method in order
    }


def _letter(number: int) -> str:
    return chr(ord("a") + number % 26) + "'" * (number // 26)


def _joined(numbers: Sequence[int], names: Sequence[str]) -> str:
    """Write letters one after the other, more than three in a row as a–f."""
    if len(numbers) > 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{names[numbers[0]]}–{names[numbers[-1]]}"
    return "".join(names[number] for number in numbers)


# -- what seeds can show -----------------------------------------------------------------------------
def paired_spread(scores: Numbers) -> float:
    """Return the standard deviation over seeds of the difference of two methods, pooled over all pairs.

    Args:
        scores: of one setting, or averages over settings, [methods, seeds], at least two of both, all known.
    """
    centred = scores - scores.mean(0)
    return float((2 * centred.var(1, ddof=1).sum() / (len(scores) - 1)) ** 0.5)


def spread_at_most(spread: float, freedom: int) -> float:
    """Return the upper end of the one-sided 90 % interval of a standard deviation."""
    from scipy.special import chdtri

    return spread * math.sqrt(freedom / float(chdtri(freedom, 0.9)))


def detectable_difference(spread: float, seeds: int) -> float:
    """Return the true difference that a paired t-test at 5 % shows in 80 % of all cases."""
    freedom = seeds - 1
    factor = t_quantile(1 - SIGNIFICANCE / 2, freedom) + t_quantile(POWER, freedom)
    return factor * spread / math.sqrt(seeds)


def seeds_needed(spread: float, difference: float) -> int | None:
    """Return the fewest seeds with which this difference can be detected; None above MOST_SEEDS."""
    low, high = 1, 2
    while detectable_difference(spread, high) > difference:
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable_difference(spread, middle) <= difference else (middle, high)
    return high


# -- tests and shares --------------------------------------------------------------------------------
def signed_rank(differences: Sequence[float]) -> float | None:
    """Return the p-value of the two-sided Wilcoxon signed-rank test without ties; None below LEAST_PAIRS."""
    pairs = [difference for difference in differences if difference]
    if len(pairs) < LEAST_PAIRS:
        return None
    from scipy.stats import wilcoxon

    return float(wilcoxon(pairs).pvalue)


def mean_gain(gains: Sequence[float]) -> float:
    """Return the mean of differences; infinite ones, of pairs with a diverged run, outweigh all others."""
    infinite = sum(math.copysign(1, gain) for gain in gains if math.isinf(gain))
    finite = [gain for gain in gains if math.isfinite(gain)]
    return infinite * math.inf if infinite else statistics.fmean(finite or [0.0])


def finite_gains(gains: Sequence[float], limit: float) -> list[float]:
    """Return differences with 0 for ties; a pair with a diverged run is further apart than all others."""
    most = max((abs(gain) for gain in gains if math.isfinite(gain)), default=0.0)
    return [0.0 if abs(gain) < limit else max(-most - 1, min(most + 1, gain)) for gain in gains]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number by Holm's steps; None is no test, and does not count."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for step, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - step)))
        corrected[place] = largest
    return corrected


def least_pairs(tests: int) -> int:
    """Return the fewest pairs with which the best of so many tests can reach 5 % after Holm's correction."""
    pairs = LEAST_PAIRS
    while 2.0 ** (1 - pairs) * tests > SIGNIFICANCE:
        pairs += 1
    return pairs


def within_of_best(scores: Numbers, distances: Numbers) -> Numbers:
    """Return the share of scenarios in which methods are near the best, [methods, distances].

    This is the performance profile of Dolan and Moré (2002) with differences instead of ratios. Only the
    scenarios that all methods have count.
    """
    import numpy as np

    flat = scores.reshape(len(scores), -1)
    flat = flat[:, ~np.isnan(flat).any(0)]
    behind = flat.max(0) - flat
    return np.asarray((behind[:, :, None] <= distances + 1e-9).mean(1))
