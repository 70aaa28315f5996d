"""The filter and the class prior of FedDiv against the closed-form checks of its specification."""

import numpy as np
import pytest
import torch
from feddiv_terms import terms
from flnl_methods.feddiv import (
    FIXED_START,
    FedDiv,
    average_filters,
    clean_posterior,
    debiased,
    fit_filter,
    maximise,
    ordered,
    random_start,
    responsibilities,
)

from flnl_bench.api import Server, Update
from flnl_bench.numerics import bounded_cross_entropy

LOSSES = np.array([0, 0.1, 0.2, 0.9, 1.0])


def close(values):
    return pytest.approx(np.array(values), abs=1.01e-6)


# -- the filter --------------------------------------------------------------------------------------
def test_the_e_step_gives_the_responsibilities_of_the_specification():
    clean = responsibilities(LOSSES, FIXED_START)[:, 0]
    assert clean == close([0.993307, 0.982014, 0.952574, 0.017986, 0.006693])


def test_one_m_step_gives_the_filter_of_the_specification():
    one = maximise(LOSSES, responsibilities(LOSSES, FIXED_START), FIXED_START)
    one[1] -= 1e-6  # the specification adds it to the result of three steps only
    assert one == close([[0.105534, 0.922331], [0.012295, 0.023973], [0.590515, 0.409485]])


def test_three_em_steps_give_the_filter_of_the_specification():
    three = fit_filter(LOSSES, FIXED_START, 3)
    assert three == close([[0.1, 0.95], [0.006668, 0.002501], [0.6, 0.4]])


def test_em_steps_equal_those_of_sklearn():
    import warnings

    from sklearn.mixture import GaussianMixture

    means, variances, shares = FIXED_START
    start = {
        "weights_init": shares,
        "means_init": means[:, None],
        "precisions_init": 1 / variances[:, None, None],
    }
    fit = GaussianMixture(2, max_iter=1, warm_start=True, **start)
    x = np.random.default_rng(0).beta(0.5, 0.7, 40)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit.fit(x[:, None])
    expected = np.stack([fit.means_[:, 0], fit.covariances_[:, 0, 0], fit.weights_])
    assert fit_filter(x, FIXED_START, 3) == pytest.approx(expected, rel=1e-9)


TWO = [
    np.array([[0.1, 0.8], [0.01, 0.04], [0.6, 0.4]]),
    np.array([[0.2, 0.9], [0.02, 0.03], [0.9, 0.1]]),
]


@pytest.mark.parametrize(
    ("power", "variances", "posterior"),
    [
        (1, [0.0175, 0.0325], [0.922603, 0.732182, 0.105539]),
        (2, [0.011875, 0.019375], [0.963472, 0.726520, 0.020668]),
    ],
)
def test_filters_are_averaged_by_size(power, variances, posterior):
    mean = average_filters(TWO, [100, 300], power)
    assert mean == close([[0.175, 0.875], variances, [0.825, 0.175]])
    assert clean_posterior(np.array([0.45, 0.5, 0.6]), mean) == close(posterior)


def server_of(method, sizes=(100, 300, 50), rounds=10):
    server = Server(terms(rounds), 1, {}, sizes)
    server.state = method.server_state(server)
    return server


def updates_of(filters, sizes=(100, 300, 50)):
    return [Update(k, sizes[k], {}, {"filter": w}) for k, w in filters.items()]


@pytest.mark.parametrize(
    ("mode", "variances"), [("fixed", [0.0175, 0.0325]), ("release", [0.011875, 0.019375])]
)
def test_the_server_averages_the_filters_of_the_clients_seen_so_far(mode, variances):
    method = FedDiv(filter_mode=mode)
    server = server_of(method)
    method.merge_filters(server, updates_of({1: TWO[1]}))
    assert server.state["filter"] == close(TWO[1])
    method.merge_filters(server, updates_of({0: TWO[0]}))  # client 1 is remembered, client 2 does not count
    assert server.state["filter"] == close([[0.175, 0.875], variances, [0.825, 0.175]])


def test_a_filter_in_the_wrong_order_is_turned_before_it_is_averaged():
    turned, straight = TWO[0][:, ::-1].copy(), TWO[1]
    turned[0], straight_means = [0.8, 0.1], straight[0].tolist()
    assert straight_means == [0.2, 0.9]
    assert average_filters([turned, straight], [100, 300])[0] == close([0.35, 0.70])  # what must not happen
    server = server_of(FedDiv())
    FedDiv().merge_filters(server, updates_of({0: turned, 1: straight}))
    assert server.state["filter"] == close([[0.175, 0.875], [0.0175, 0.0325], [0.825, 0.175]])
    assert ordered(ordered(turned)) == close(TWO[0])


def test_em_from_a_common_start_keeps_the_order_on_a_client_where_most_is_noisy():
    x = np.array([0.0, 0.9, 0.92, 0.95, 0.97, 1.0])
    means, _, shares = fit_filter(x, FIXED_START, 3)
    assert means[0] < means[1]
    assert shares[0] == pytest.approx(1 / 6, abs=0.01)


def test_the_start_of_the_released_code_can_hardly_tell_its_components_apart():
    first, second = (random_start(np.random.default_rng(seed)) for seed in (0, 1))
    for start in (first, second):
        means, variances, shares = start
        assert 0 <= means[1] - means[0] < 0.1
        assert variances[0] == pytest.approx(variances[1], rel=0.2)
        assert shares == pytest.approx([0.5, 0.5], abs=0.05)
    assert not np.allclose(first, second)
    assert server_of(FedDiv()).state["filter"].tolist() == [[0.25, 0.75], [0.05, 0.05], [0.5, 0.5]]
    release = FedDiv(filter_mode="release")
    assert np.array_equal(server_of(release).state["filter"], server_of(release).state["filter"])


def test_a_component_without_responsibility_keeps_its_place():
    start = np.array([[0.1, 900.0], [0.01, 1e-4], [0.5, 0.5]])
    means, variances, shares = fit_filter(LOSSES, start, 1)
    assert (means[1], variances[1]) == (900.0, 1e-4)
    assert shares == close([1 / 1.001, 0.001 / 1.001])


def test_tiny_variances_neither_vanish_nor_underflow():
    merged = average_filters([np.array([[0.1, 0.8], [1e-9, 1e-9], [0.5, 0.5]])], [10], 2)
    assert merged[1].tolist() == [1e-6, 1e-6]
    assert clean_posterior(np.array([0.0, 0.44, 0.46, 1.0]), merged).tolist() == [1, 1, 0, 0]
    collapsed = fit_filter(np.array([0.0, 0.0, 1.0, 1.0]), merged, 3)
    assert collapsed[1] == close([1e-6, 1e-6])


# -- losses and biases -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("probabilities", "y", "expected"),
    [
        ([0.7, 0.2, 0.1], 0, 0.767950),
        ([0.7, 0.2, 0.1], 1, 1.267950),
        ([0.7, 0.2, 0.1], 2, 1.367950),
        ([1.0] + [0.0] * 9, 0, 1.461150),
        ([1.0] + [0.0] * 9, 1, 2.461150),
        ([0.1] * 10, 3, 2.302585),
        ([1.0] + [0.0] * 99, 0, 3.622207),
        ([1.0] + [0.0] * 99, 1, 4.622207),
        ([0.01] * 100, 3, 4.605170),
    ],
)
def test_the_loss_of_the_filter_is_bounded(probabilities, y, expected):
    loss = bounded_cross_entropy(torch.tensor([probabilities], dtype=torch.float64), torch.tensor([y]))
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("xi", "adjusted"),
    [(0.0, (2.0, 1.8, 0.5)), (0.2, (2.071335, 2.121888, 0.960517)), (0.5, (2.178337, 2.604719, 1.651293))],
)
def test_the_class_prior_is_taken_off_the_logits(xi, adjusted):
    logits, prior = torch.tensor([[2.0, 1.8, 0.5]]), torch.tensor([0.7, 0.2, 0.1])
    assert debiased(logits, prior, xi)[0].numpy() == close(adjusted)
    # The global model says class 0: the sample stays only where the local model is not de-biased.
    state = {"prior": prior}
    FedDiv(debias=xi).update_bias(logits, state)
    agree = state["debiased"] == 0
    assert agree.item() == (xi == 0)
    everything = torch.ones(1, dtype=torch.bool)
    assert FedDiv().choose(everything, ~everything, agree, 0.3, True).item() == (xi == 0)


@pytest.mark.parametrize(("momentum", "expected"), [(0.2, (0.54, 0.28, 0.18)), (0.5, (0.60, 0.25, 0.15))])
def test_the_class_prior_follows_the_mean_prediction(momentum, expected):
    state = {"prior": torch.tensor([0.7, 0.2, 0.1])}
    mean = torch.tensor([[0.5, 0.3, 0.2]]).log()
    FedDiv(momentum=momentum).update_bias(mean, state)
    assert state["prior"].numpy() == close(expected)


def test_the_cached_label_is_made_with_the_prior_from_before():
    state = {"prior": torch.tensor([0.98, 0.01, 0.01])}
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    FedDiv(momentum=0.0).update_bias(logits, state)
    assert state["debiased"].tolist() == [1]
    assert debiased(logits, state["prior"], 0.5).argmax(1).tolist() == [0]


def test_a_class_that_was_never_predicted_has_a_finite_bonus():
    adjusted = debiased(torch.zeros(1, 2), torch.tensor([1.0, 0.0]), 0.5)
    assert adjusted[0, 1].item() == pytest.approx(0.5 * 18.42, abs=0.01)
    state = {"prior": torch.tensor([1.0, 0.0])}
    FedDiv(prior_floor=1e-3).update_bias(torch.tensor([[4.0, 0.0]]), state)
    assert state["debiased"].tolist() == [0]
    state["prior"] = torch.tensor([1.0, 0.0])
    FedDiv().update_bias(torch.tensor([[4.0, 0.0]]), state)
    assert state["debiased"].tolist() == [1]
