"""Localised errors, sparse transitions and the error rates of people, against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from test_noise_kinds import client_of, labels_of

from flnl_bench.data import load_dataset
from flnl_bench.random_streams import stream
from flnl_bench.scenario import NOISES, check_dataset, draw_scenario, parse_setting
from flnl_bench.scenario.noise import labels_and_open
from flnl_bench.scenario.setting import PEOPLE_SHAPE
from flnl_bench.scenario.sparse import draw_errors, targets_of_a_class

DIGITS = load_dataset("digits")
TRUE = [1, 1, 4, 7, 4, 1, 7, 4, 1, 4]


def drawn(setting, ratio=0.6):
    """The labels of a client of ten images, drawn from the stream of the specification."""
    rng = stream(1, "scenario", "labels", "toy", 0)
    client = client_of(setting, TRUE, ratio, 10, rng=rng)
    return "".join(map(str, labels_and_open(parse_setting(setting).kind.name, client)[0]))


# -- into=local --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("sym-1.0", "8177949424"),
        ("sym-1.0,into=local", "7177741444"),
        ("pair-1.0,into=local", "4177741444"),
        ("pair-1.0,step=-1,into=local", "7117174474"),
    ],
)
def test_local_errors_stay_among_the_classes_of_the_client(setting, given):
    assert drawn(setting) == given


def test_where_every_client_holds_every_class_the_option_changes_nothing():
    for setting in ("sym-1.0:0.4-0.4", "mixed-1.0", "pair-0.6"):
        one, other = (draw_scenario(DIGITS, "iid", setting + end, 20) for end in ("", ",into=local"))
        assert one.fingerprint == other.fingerprint


def test_under_skew_no_error_leads_to_a_foreign_class():
    def foreign(setting, partition="dir-0.3"):
        scenario = draw_scenario(DIGITS, partition, setting, 20)
        check_dataset(scenario, DIGITS)
        wrong = [
            (~np.isin(scenario.given[rows], scenario.true[rows])).sum() / scenario.wrong[rows].sum()
            for rows in scenario.clients
            if scenario.wrong[rows].any()
        ]
        errors = sum(scenario.wrong[rows].sum() for rows in scenario.clients)
        outside = sum(
            (~np.isin(scenario.given[rows], scenario.true[rows])).sum() for rows in scenario.clients
        )
        return outside / errors, max(wrong), scenario

    assert foreign("sym-1.0:0.4-0.4")[0] == pytest.approx(0.4183, abs=5e-5)
    assert foreign("sym-1.0:0.4-0.4", "dir-0.1")[0] == pytest.approx(0.7601, abs=5e-5)
    for setting in ("sym-1.0:0.4-0.4", "mixed-1.0", "pair-1.0", "sparse-1.0"):
        assert foreign(f"{setting},into=local")[:2] == (0, 0)
    scenario = foreign("sym-1.0:0.4-0.4,into=local", "dir-0.1")[2]
    alone = [len(np.unique(scenario.true[rows])) == 1 for rows in scenario.clients]
    exact = [np.floor(0.4 * len(rows) + 1e-9) / len(rows) for rows in scenario.clients]
    assert any(alone)
    assert scenario.realised.tolist() == [
        0 if one else share for one, share in zip(alone, exact, strict=True)
    ]


def test_a_client_of_one_class_keeps_its_labels_unless_its_errors_may_lead_anywhere():
    assert labels_of("sym-1.0,into=local", [3] * 10, 0.5, 10).tolist() == [3] * 10
    anywhere = labels_of("sym-1.0,into=local,alone=global", [3] * 10, 0.5, 10)
    assert np.array_equal(anywhere, labels_of("sym-1.0", [3] * 10, 0.5, 10))
    assert (anywhere != 3).sum() == 5


def test_small_classes_drown_as_the_formula_says():
    true = np.repeat([0, 1, 2], [600, 300, 100]).repeat(100)
    given = labels_of("sym-1.0,into=local", true, 0.4, 10)
    purity = [(true == given)[given == c].mean() for c in range(3)]
    assert purity == pytest.approx([0.818182, 0.5625, 0.25], abs=0.01)


def test_a_ratio_that_inverts_the_labels_of_a_client_is_warned_of():
    with pytest.warns(UserWarning, match=r"with 2 classes and a ratio of 0.60, wrong labels"):
        labels_of("sym-1.0,into=local", [1, 3] * 10, 0.6, 10)


def test_forged_labels_of_foreign_classes_are_found():
    scenario = draw_scenario(DIGITS, "dir-0.3", "sym-1.0:0.4-0.4,into=local", 20)
    few = next(k for k in range(20) if len(np.unique(scenario.true[scenario.clients[k]])) < 8)
    rows, given = scenario.clients[few], scenario.given.copy()
    row = rows[scenario.wrong[rows]][0]
    given[row] = next(c for c in range(10) if c not in scenario.true[rows])
    with pytest.raises(Exception, match=f"client {few} has labels of classes that it does not hold"):
        check_dataset(replace(scenario, given=given), DIGITS)


# -- sparse ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("classes", "counts"),
    [
        (10, (9, 8, 6, 5, 3, 2, 1, 1)),
        (14, (13, 11, 8, 7, 4, 3, 2, 1)),
        (100, (99, 80, 60, 50, 30, 20, 10, 1)),
    ],
)
def test_the_number_of_targets_falls_with_the_sparsity(classes, counts):
    shares = (0, 0.2, 0.4, 0.5, 0.7, 0.8, 0.9, 1)
    assert tuple(targets_of_a_class(classes, share) for share in shares) == counts
    assert targets_of_a_class(10, 2 / 3) == 3


def sparse_of_digits(**options):
    values = {option.name: option.default for option in NOISES["sparse"].options} | options
    return draw_errors(10, values, stream(1, "scenario", "noise", "sparse", "digits"))


def test_the_sparse_targets_of_digits_are_those_of_the_specification():
    errors = sparse_of_digits().errors
    assert ["".join(map(str, np.flatnonzero(row))) for row in errors] == [
        *("278", "357", "067", "168", "235", "189", "089", "568", "069", "123")
    ]
    assert np.allclose(errors[errors > 0], 1 / 3)
    drawn_shares = sparse_of_digits(weights="drawn").errors
    assert drawn_shares[0, [2, 7, 8]] == pytest.approx([0.072638, 0.246827, 0.680535], abs=1e-6)
    assert drawn_shares[1, [5, 6, 7]] == pytest.approx([0.166216, 0.568722, 0.265062], abs=1e-6)
    assert drawn_shares[9, [2, 5, 8]] == pytest.approx([0.823532, 0.089773, 0.086695], abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "errors"),
    [(0.2, [2, 39, 29, 3, 25, 30, 6, 3, 34, 22]), (0.6, [7, 100, 89, 9, 76, 92, 20, 10, 100, 67])],
)
def test_drawn_rates_of_classes_share_out_the_errors(ratio, errors):
    sparse = sparse_of_digits(rates="drawn")
    assert sparse.rates[:3] == pytest.approx([0.127744, 1.995243, 1.491472], abs=1e-6)
    true = np.arange(10).repeat(100)
    client = client_of("sparse-1.0,rates=drawn", true, ratio, 10, shared=sparse)
    given = labels_and_open("sparse", client)[0]
    assert [int((given != true)[true == c].sum()) for c in range(10)] == errors


def test_without_sparsity_errors_lead_anywhere_and_clients_may_have_their_own_targets():
    assert np.allclose(sparse_of_digits(sparsity=0.0).errors, (1 - np.eye(10)) / 9)
    for end, most in (("", 1), (",support=client", 2)):
        scenario = draw_scenario(DIGITS, "iid", f"sparse-1.0,sparsity=1{end}", 2)
        targets = (scenario.transitions * ~np.eye(10, dtype=bool)) > 0  # [K, C, C]
        assert targets.sum(axis=2).max() == 1
        assert targets.any(axis=0).sum(axis=1).max() == most


# -- rates=people ------------------------------------------------------------------------------------
def test_the_ratios_of_people_have_the_quantiles_of_their_distribution():
    from scipy.stats import beta

    exact = beta(*PEOPLE_SHAPE)
    assert exact.ppf([0.05, 0.5, 0.95]) == pytest.approx([0.136807, 0.423549, 0.754667], abs=1e-6)
    assert exact.mean() == pytest.approx(0.431703, abs=1e-6)
    setting = parse_setting("sym-0.5,rates=people")
    low, high = exact.cdf([0.02, 0.98])
    quantiles = np.linspace(0, 1, 7)
    assert setting.ratios_at(quantiles) == pytest.approx(exact.ppf(low + (high - low) * quantiles), abs=1e-9)
    mean = exact.expect(lambda ratio: ratio, lb=0.02, ub=0.98, conditional=True)
    assert setting.expected_ratio == pytest.approx(0.5 * mean, abs=1e-6)


@pytest.mark.parametrize("kind", ["sym", "asym", "mixed", "pair", "inst", "pmd", "annot", "sparse"])
def test_every_kind_with_ratios_takes_those_of_people(kind):
    scenario = draw_scenario(DIGITS, "iid", f"{kind}-0.5,rates=people", 20)
    plain = draw_scenario(DIGITS, "iid", f"{kind}-0.5", 20)
    noisy = scenario.nominal > 0
    assert [k != "clean" for k in plain.kinds] == noisy.tolist()
    assert scenario.nominal[noisy] == pytest.approx(
        parse_setting("sym-0.5,rates=people").ratios_at(stream(1, "scenario", "ratios", "digits").random(20))[
            noisy
        ]
    )
    assert scenario.setting == f"{kind}-0.5,rates=people"
    assert np.ptp(scenario.nominal[noisy]) > 0.4


def test_a_pool_of_annotators_may_have_the_rates_of_people():
    everyone = client_of("annot-1.0,pool=400,rates=people", np.arange(10), np.nan, 10)
    assert everyone.shared.rates.mean() == pytest.approx(0.432, abs=0.03)
    announced = NOISES["annot"].announced(everyone)
    assert announced == pytest.approx(everyone.setting.mean_ratio)
