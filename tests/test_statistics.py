"""The statistics against brute force, against other libraries, and in simulations with known ranks."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
import scipy.stats

from flnl_bench.leaderboards.statistics import (
    FEWEST_SETTINGS,
    detectable_difference,
    difference_intervals,
    distinguishable,
    drawn_places,
    holm,
    least_pairs,
    paired_spread,
    resample,
    seeds_needed,
    signed_rank,
    tie_letters,
    within_of_best,
)


@pytest.fixture
def three_are_drawn(monkeypatch):
    """Three settings are drawn, so that all possible draws can be listed."""
    monkeypatch.setattr("flnl_bench.leaderboards.statistics.FEWEST_SETTINGS", 3)


# -- the bootstrap, draw by draw ---------------------------------------------------------------------
def every_draw(scores):
    """All equally likely averages [draws, methods] of settings and then seeds drawn with replacement."""
    _, settings, seeds = scores.shape
    draws = []
    for picked in itertools.product(range(settings), repeat=settings):
        for chosen in itertools.product(itertools.product(range(seeds), repeat=seeds), repeat=settings):
            cells = [
                scores[:, setting, list(own)].mean(1) for setting, own in zip(picked, chosen, strict=True)
            ]
            draws.append(np.mean(cells, 0))
    return np.array(draws)


def small_world():
    """Three methods, settings and two seeds, whose places are not clear."""
    return np.random.default_rng(3).normal(50, 4, (3, 3, 2)) + np.array([2.0, 0.0, -1.0])[:, None, None]


@pytest.mark.usefixtures("three_are_drawn")
def test_draws_have_the_distribution_of_all_possible_draws():
    scores = small_world()
    draws, brute = resample(scores, 40_000), every_draw(scores)
    assert len(brute) == 3**3 * 4**3
    assert draws.means == pytest.approx(scores.mean((1, 2)))
    assert draws.drawn.mean(0) == pytest.approx(brute.mean(0), abs=0.05)
    assert np.cov(draws.drawn.T) == pytest.approx(np.cov(brute.T, ddof=0), rel=0.04, abs=0.03)
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    assert np.quantile(draws.drawn, shares, axis=0) == pytest.approx(
        np.quantile(brute, shares, axis=0), abs=0.12
    )


@pytest.mark.usefixtures("three_are_drawn")
def test_places_and_differences_are_those_of_all_possible_draws():
    scores = small_world()
    draws, brute = resample(scores, 40_000), every_draw(scores)
    means = scores.mean((1, 2))
    widened = brute * 0 + means + draws.common_stretch * draws.widened(0.9) * (brute - means)
    places = (-widened).argsort(1).argsort(1) + 1
    low, high, first = drawn_places(draws, 0.9)
    assert low.tolist() == np.quantile(places, 0.05, axis=0, method="inverted_cdf").tolist()
    assert high.tolist() == np.quantile(places, 0.95, axis=0, method="inverted_cdf").tolist()
    assert first == pytest.approx((places == 1).mean(0), abs=0.02)
    assert 0.02 < first.min() < first.max() < 0.98
    factor = draws.stretch[0, 1] * scipy.stats.t.ppf(0.975, 2) / scipy.stats.norm.ppf(0.975)
    difference = means[0] - means[1] + factor * (brute[:, 0] - brute[:, 1] - (means[0] - means[1]))
    low, high = difference_intervals(draws, 0)[:, 1]
    assert ((difference < low).mean(), (difference <= high).mean()) == pytest.approx(
        (0.025, 0.975), abs=0.012
    )


def test_the_standard_error_of_a_difference_is_the_unbiased_one():
    scores = np.random.default_rng(0).normal(0, 5, (2, 8, 3))
    draws = resample(scores, 40_000)
    error = draws.stretch[0, 1] * (draws.drawn[:, 0] - draws.drawn[:, 1]).std()
    cells = (scores[0] - scores[1]).mean(1)
    assert error == pytest.approx(cells.std(ddof=1) / 8**0.5, rel=0.02)


def test_few_settings_are_not_drawn_and_the_interval_is_near_that_of_t():
    differences = np.random.default_rng(5).normal(3, 2, 12)
    scores = np.stack([50 + differences, np.full(12, 50.0)])[:, None]
    low, high = difference_intervals(resample(scores, 20_000), 0)[:, 1]
    expected = scipy.stats.t.interval(0.95, 11, differences.mean(), scipy.stats.sem(differences))
    assert (low, high) == pytest.approx(expected, abs=0.2)
    two = np.concatenate([scores, scores + np.array([20.0, -20.0])[:, None, None]], 1)  # far apart
    assert difference_intervals(resample(two, 2000), 0)[1, 1] - 23 < 5


def test_scenarios_are_shared_so_what_they_do_to_all_methods_alike_does_not_count():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 30, (1, 6, 5))
    own = rng.normal(0, 0.1, (2, 6, 5)) + np.array([1.0, 0.0])[:, None, None]
    draws = resample(own + shared)
    low, high = difference_intervals(draws, 0)[:, 1]
    assert 0.8 < low < 1 < high < 1.2
    assert [values.tolist() for values in drawn_places(draws)] == [[1, 2], [1, 2], [1.0, 0.0]]


def test_the_same_runs_give_the_same_draws():
    scores = small_world()
    assert (resample(scores).drawn == resample(scores).drawn).all()
    assert (resample(scores).drawn != resample(scores, seed=1).drawn).any()


def test_missing_seeds_are_left_out():
    scores = small_world()
    scores[1, 2, 1] = np.nan
    draws = resample(scores)
    assert np.isfinite(draws.drawn).all()
    assert draws.means[1] == pytest.approx(
        np.mean([scores[1, 0].mean(), scores[1, 1].mean(), scores[1, 2, 0]])
    )


def test_one_seed_in_few_settings_says_nothing():
    assert resample(np.ones((3, 1, 1))) is None
    assert resample(np.ones((3, 4, 1))) is None
    assert resample(np.ones((3, 5, 1))) is not None


def test_equal_methods_share_their_places():
    draws = resample(np.ones((3, 4, 2)))
    assert [values.tolist() for values in drawn_places(draws)] == [
        [1, 1, 1],
        [3, 3, 3],
        [pytest.approx(1 / 3)] * 3,
    ]
    assert not distinguishable(draws).any()


# -- coverage ----------------------------------------------------------------------------------------
def coverage(methods, settings, seeds, *, interaction, noise, spread, repeats, draws=400):
    """Return how often the intervals of places and of neighbours' differences hold the truth."""
    rng, places, differences = np.random.default_rng(0), [], []
    for _ in range(repeats):
        truth = np.sort(rng.normal(0, spread, methods))[::-1]
        cells = truth[:, None] + rng.normal(0, interaction, (methods, settings))
        if settings < FEWEST_SETTINGS:  # the statements are about these settings
            cells = cells[(-cells.mean(1)).argsort()]
            truth = cells.mean(1)
        scores = cells[:, :, None]
        scores = (
            scores + rng.normal(0, noise, (methods, settings, seeds)) + rng.normal(0, 20, (settings, seeds))
        )
        found = resample(scores, draws)
        low, high, _ = drawn_places(found)
        places.append((low <= np.arange(1, methods + 1)) & (np.arange(1, methods + 1) <= high))
        for i in range(methods - 1):
            low, high = difference_intervals(found, i, 0.9)[:, i + 1]
            differences.append(low <= truth[i] - truth[i + 1] <= high)
    return np.mean(places), np.mean(differences)


def test_ninety_percent_intervals_hold_the_truth_in_about_ninety_percent():
    places, differences = coverage(8, 6, 3, interaction=4, noise=3, spread=2, repeats=120)
    assert 0.85 < places < 0.95
    assert 0.85 < differences < 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "settings", "seeds", "world"),
    [
        (8, 6, 3, {"interaction": 4, "noise": 3, "spread": 2}),
        (26, 15, 10, {"interaction": 5, "noise": 3, "spread": 5}),
        (26, 6, 3, {"interaction": 8, "noise": 3, "spread": 8}),
        (12, 3, 3, {"interaction": 1, "noise": 3, "spread": 1}),
        (8, 1, 10, {"interaction": 0, "noise": 3, "spread": 1}),
        (10, 10, 5, {"interaction": 3, "noise": 2, "spread": 2}),
    ],
)
def test_intervals_hold_the_truth_in_larger_worlds(methods, settings, seeds, world):
    places, differences = coverage(methods, settings, seeds, **world, repeats=1000, draws=1000)
    assert 0.85 < places < 0.95
    assert 0.85 < differences < 0.95


# -- ties --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("apart", "letters"),
    [
        ([], "abc abc abc"),
        ([(0, 2)], "a ab b"),
        ([(0, 1), (0, 2)], "a b b"),
        ([(0, 1), (0, 2), (1, 2)], "a b c"),
        ([(0, 1)], "a b ab"),  # the last one is noisy
    ],
)
def test_two_share_a_letter_if_and_only_if_they_are_not_apart(apart, letters):
    matrix = np.zeros((3, 3), bool)
    for i, j in apart:
        matrix[i, j] = matrix[j, i] = True
    expected = ["a", "a", "a"] if not apart else letters.split()
    assert list(tie_letters([0, 1, 2], matrix).values()) == expected


def test_letters_of_many_methods_tell_the_pairs():
    rng = np.random.default_rng(0)
    means, noise = np.sort(rng.normal(0, 3, 30))[::-1], rng.uniform(0.5, 1, 30)
    apart = np.abs(means[:, None] - means) > noise[:, None] + noise
    letters = tie_letters(range(30), apart)
    sets = [in_full(letters[i]) for i in range(30)]
    for i, j in itertools.combinations(range(30), 2):
        assert bool(sets[i] & sets[j]) != apart[i, j]


def in_full(text):
    """The letters of a text such as a–f."""
    first, dash, last = text.partition("–")
    return {chr(code) for code in range(ord(first), ord(last) + 1)} if dash else set(text)


def test_more_than_three_letters_in_a_row_are_written_short():
    apart = np.zeros((9, 9), bool)
    for i, j in itertools.combinations(range(8), 2):
        apart[i, j] = apart[j, i] = True  # the last one cannot be told from anybody
    assert list(tie_letters(range(9), apart).values()) == [*"abcdefgh", "a–h"]


# -- what seeds can show -----------------------------------------------------------------------------
def test_the_pooled_spread_is_the_mean_over_all_pairs():
    scores = np.random.default_rng(2).normal(0, 3, (5, 4))
    pairs = itertools.combinations(scores, 2)
    assert paired_spread(scores) ** 2 == pytest.approx(
        statistics.fmean(statistics.variance(a - b) for a, b in pairs)
    )


def test_a_detectable_difference_is_detected_in_about_eighty_percent():
    rng, seeds, spread = np.random.default_rng(0), 8, 3.0
    difference = detectable_difference(spread, seeds)
    samples = rng.normal(difference, spread, (4000, seeds))
    found = (scipy.stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05).mean()
    assert found == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("difference", [0.5, 2.0, 9.0])
def test_the_fewest_seeds_are_the_fewest(difference):
    needed = seeds_needed(4.0, difference)
    assert detectable_difference(4.0, needed) <= difference
    assert needed == 2 or detectable_difference(4.0, needed - 1) > difference


def test_no_number_of_seeds_shows_no_difference():
    assert seeds_needed(4.0, 0.0) is None
    assert seeds_needed(0.0, 1.0) == 2


# -- tests -------------------------------------------------------------------------------------------
def test_wilcoxon_and_holm_agree_with_scikit_posthocs():
    posthocs = pytest.importorskip("scikit_posthocs")
    scores = np.random.default_rng(4).normal(0, 2, (4, 12)) + 2 * np.arange(4)[:, None]
    pairs = list(itertools.combinations(range(4), 2))
    own = holm([signed_rank(list(scores[i] - scores[j])) for i, j in pairs])
    theirs = posthocs.posthoc_wilcoxon(list(scores), p_adjust="holm").to_numpy()
    assert own == pytest.approx([theirs[i, j] for i, j in pairs])
    assert min(own) < 0.05 < max(own)


def test_holm_leaves_out_what_was_not_tested():
    assert holm([0.01, None, 0.04, 0.03]) == [0.03, None, 0.06, 0.06]
    assert holm([]) == []


def test_below_six_pairs_there_is_no_test():
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]) is None  # a tie is no pair
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == 0.03125
    assert (least_pairs(1), least_pairs(6)) == (6, 8)


def test_a_profile_is_the_share_of_scenarios_near_the_best():
    scores = np.array([[[50.0, 60.0]], [[49.0, 70.0]], [[-np.inf, 65.0]]])
    shares = within_of_best(scores, np.array([0.0, 1.0, 5.0, 10.0]))
    assert shares.tolist() == [[0.5, 0.5, 0.5, 1.0], [0.5, 1.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5]]
