"""FedDiv against the closed-form checks of its specification."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
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
    scaled,
)
from waits import assert_no_step_waits

from flnl_bench.api import Server, Terms, Update, copy_weights
from flnl_bench.engine.tree import count_bytes
from flnl_bench.numerics import bounded_cross_entropy, mixup_cross_entropy, uniform_penalty
from flnl_bench.testing import TRAINING, degenerate_scenario, play, toy_engine, toy_scenario

LOSSES = np.array([0, 0.1, 0.2, 0.9, 1.0])
BEGIN = 3  # the first round after the warm-up of the toy world


def terms(rounds=10, fraction=0.5, batch_size=4, iid=True):
    return Terms(rounds, 4, fraction, 2, batch_size, 3, 0.5, iid)


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


def test_losses_are_scaled_to_the_unit_interval_unless_they_are_equal():
    assert scaled(torch.tensor([2.0, 1.0, 1.5])).tolist() == [1.0, 0.0, 0.5]
    for useless in ([1.5, 1.5, 1.5], [2.0], [float("nan"), 1.0]):
        assert scaled(torch.tensor(useless)) is None


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


def test_the_regulariser_and_the_loss_of_mixup_have_the_values_of_the_specification():
    q = torch.tensor([[0.7, 0.2, 0.1]])
    assert uniform_penalty(q.log()).item() == pytest.approx(0.324287, abs=1e-6)
    logits = torch.tensor([[1.0, 0.0, -1.0]])
    loss = mixup_cross_entropy(logits, torch.tensor([0]), torch.tensor([2]), 0.3)
    assert loss.item() == pytest.approx(1.807606, abs=1e-6)


def loss_of(method, round, iid, lam=0.3):
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
    client = SimpleNamespace(round=round, terms=terms(iid=iid), state={"targets": torch.tensor([9, 0, 2])})
    batch = SimpleNamespace(
        x=logits, index=torch.tensor([1, 2]), note={"lam": lam, "order": torch.tensor([1, 0])}
    )
    return method.loss(lambda x: x, batch, client)


def test_the_loss_mixes_images_and_refined_labels_and_regularises_skewed_partitions():
    mix = 0.3 * torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
    mix = mix + 0.7 * torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, -1.0]])
    expected = mixup_cross_entropy(mix, torch.tensor([0, 2]), torch.tensor([2, 0]), 0.3)
    iid, skewed = loss_of(FedDiv(), BEGIN, True), loss_of(FedDiv(), BEGIN, False)
    assert torch.allclose(iid, expected)
    assert torch.allclose(skewed, expected + uniform_penalty(mix))
    assert torch.allclose(loss_of(FedDiv(eta=0.5), BEGIN, True), expected + 0.5 * uniform_penalty(mix))
    assert torch.allclose(loss_of(FedDiv(eta=0.5), BEGIN - 1, False), expected)  # warm-up


def test_the_share_of_mixup_is_not_folded_to_the_larger_half():
    client = toy_client(round=0)
    notes = [step.note for step in next(FedDiv().plan(None, client))]
    shares = np.array([note["lam"] for note in notes])
    assert (shares < 0.5).any()
    assert (shares > 0.5).any()
    assert len(set(shares)) == len(notes)


def toy_client(round):
    seen = []
    engine = toy_engine(FedDiv(), batch_size=4)
    engine.server.round = round
    engine.federation.visit([0], lambda client: seen.append(client) or {})
    FedDiv().on_receive(None, seen[0])
    return seen[0]


# -- schedule ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rounds", "expected"), [(1, 3), (30, 3), (50, 5), (500, 50)])
def test_the_warm_up_is_a_tenth_of_the_rounds(rounds, expected):
    assert FedDiv().warmup(terms(rounds)) == expected


@pytest.mark.parametrize(
    ("rounds", "fraction", "expected"),
    [(950, 0.1, 5), (500, 0.1, 3), (30, 0.1, 1), (50, 0.5, 1), (5, 0.1, 1)],
)
def test_the_gate_on_visits_scales_with_the_expected_visits(rounds, fraction, expected):
    assert FedDiv().least_visits(terms(rounds, fraction)) == expected


# -- split, relabel, sample --------------------------------------------------------------------------
def look(
    method, given, guess, *, visits=9, debiased=None, unsure=(), batch_size=1, round=BEGIN, filter=FIXED_START
):
    """A client after on_receive, whose global model says `guess`, without doubt but for `unsure` rows."""
    y, guess = torch.tensor(given), torch.tensor(guess)
    logits = torch.nn.functional.one_hot(guess, 3) * 6.0
    for row in unsure:  # 0.70 < 0.75 for the guess
        logits[row] *= 1.55 / 6
    client = SimpleNamespace(
        terms=terms(batch_size=batch_size),
        round=round,
        y=y,
        size=len(y),
        inbox={"filter": filter},
        received=lambda x: x,
        map=lambda fn: fn(SimpleNamespace(x=logits, y=y, index=torch.arange(len(y)))),
    )
    client.state = method.client_state(client)
    client.state["visits"] = visits
    if debiased is not None:
        client.state["debiased"] = torch.tensor(debiased)
    method.on_receive(None, client)
    return client


def with_noise(noisy, size=20):
    """Given labels 0 and a global model that contradicts the last ones."""
    return [0] * size, [0] * (size - noisy) + [1] * noisy


NOWHERE, FIRST_TWO = [-1] * 20, [0, 0] + [2] * 18


@pytest.mark.parametrize("visits", [0, 9])
def test_a_client_with_little_noise_trains_on_all_given_labels(visits):
    state = look(FedDiv(), *with_noise(1), visits=visits, debiased=FIRST_TWO).state
    assert state["judged"]["noise_ratio"] == 0.05
    assert state["targets"].tolist() == [0] * 20
    assert look(FedDiv(), *with_noise(2)).state["targets"].tolist() == [0] * 20  # 0.1 is still clean


def test_on_early_visits_a_noisy_client_trains_on_all_it_judges_clean():
    state = look(FedDiv(), *with_noise(6), visits=0, debiased=FIRST_TWO).state
    assert state["judged"]["noise_ratio"] == 0.3
    assert state["targets"].tolist() == [0] * 14 + [-1] * 6


def test_between_the_gates_only_consistent_clean_samples_are_trained_on():
    state = look(FedDiv(), *with_noise(3), debiased=[0, 0] + [2] * 15 + [1] * 3).state
    assert state["judged"]["noise_ratio"] == 0.15
    assert state["targets"].tolist() == [0, 0] + [-1] * 18
    assert look(FedDiv(), *with_noise(4), debiased=[1] * 20).state["skipped"] == 1.0  # 0.2 is not above 0.2


def test_above_the_gate_consistent_samples_with_new_labels_join():
    state = look(FedDiv(), *with_noise(6), debiased=[0, 0] + [2] * 12 + [1, 1, 1, 2, 2, 2]).state
    assert state["targets"].tolist() == [0, 0] + [-1] * 12 + [1, 1, 1, -1, -1, -1]
    assert state["judged"]["pseudo"].tolist() == [-1] * 14 + [1] * 6


def test_before_anything_is_cached_the_sampler_removes_nothing():
    state = look(FedDiv(), *with_noise(6), debiased=NOWHERE).state
    assert state["targets"].tolist() == [0] * 14 + [1] * 6


def test_only_a_confident_global_model_relabels():
    state = look(FedDiv(), *with_noise(6), unsure=[18, 19]).state
    assert state["judged"]["clean"].tolist() == [True] * 14 + [False] * 6
    assert state["targets"].tolist() == [0] * 14 + [1] * 4 + [-1] * 2
    state = look(FedDiv(confidence=0.7), *with_noise(6), unsure=[18, 19]).state
    assert state["targets"].tolist() == [0] * 14 + [1] * 6


class Wary(FedDiv):
    """Treats no client as clean, not even one without a noisy label."""

    clean_client: float = -1.0

    def __post_init__(self):
        """Let it pass."""


def test_a_clean_sample_keeps_its_given_label_even_if_the_global_model_differs():
    lenient = np.array([[0.0, 9.0], [0.05, 0.05], [0.5, 0.5]])
    strict = np.array([[0.0, 0.9], [0.05, 0.05], [0.5, 0.5]])
    given, guess = [0] * 10, [1] * 4 + [0] * 6
    state = look(Wary(), given, guess, filter=lenient).state
    assert state["targets"].tolist() == given
    assert look(Wary(), given, guess, filter=strict).state["targets"].tolist() == guess


def test_the_given_labels_stay_unless_new_ones_shall_persist():
    debiased = [0] * 14 + [1, 1, 1, 2, 2, 2]
    for visits in (0, 9):
        state = look(FedDiv(), *with_noise(6), visits=visits, debiased=debiased).state
        assert state["labels"].tolist() == [0] * 20
        # As in the released code: whatever agrees is overwritten, also before it is trained on.
        state = look(FedDiv(persist_relabels=True), *with_noise(6), visits=visits, debiased=debiased).state
        assert state["labels"].tolist() == [0] * 14 + [1, 1, 1, 0, 0, 0]
    state = look(FedDiv(persist_relabels=True), *with_noise(2), debiased=[1] * 20).state
    assert state["labels"].tolist() == [0] * 20


@pytest.mark.parametrize(("batch_size", "skipped"), [(19, False), (20, True)])
def test_as_many_samples_as_a_batch_are_too_few(batch_size, skipped):
    state = look(FedDiv(), *with_noise(0), batch_size=batch_size).state
    assert state["skipped"] == skipped
    assert (state["targets"] < 0).all() == skipped
    assert look(FedDiv(least_samples=10), *with_noise(0), batch_size=32).state["skipped"] == 0.0
    assert look(FedDiv(least_samples=10), *with_noise(0, size=10), batch_size=32).state["skipped"] == 1.0


def test_a_client_with_equal_losses_counts_as_clean():
    state = look(FedDiv(), [0] * 5, [1] * 5).state
    assert state["judged"]["noise_ratio"] == 0.0
    assert state["targets"].tolist() == [0] * 5


def test_the_beliefs_are_those_the_client_acts_upon():
    method = FedDiv()
    noisy = method.beliefs(None, 0, look(method, *with_noise(6)).state)
    assert noisy.clean.tolist() == [True] * 14 + [False] * 6
    assert (noisy.noise_ratio, noisy.numbers) == (0.3, {"skipped": 0.0, "treated_as_clean": 0.0})
    assert noisy.labels.tolist() == [0] * 14 + [1] * 6
    trusted = method.beliefs(None, 0, look(method, *with_noise(1)).state)
    assert trusted.clean.all()
    assert trusted.clean_probability[-1] < 0.5
    assert trusted.noise_ratio == 0.05


def test_a_label_that_was_replaced_for_good_is_not_believed_clean():
    method = FedDiv(persist_relabels=True)
    state = look(method, *with_noise(1)).state
    state["judged"]["kept"][0] = False
    assert method.beliefs(None, 0, state).clean.tolist() == [False] + [True] * 19


# -- rounds ------------------------------------------------------------------------------------------
def test_a_client_that_does_not_train_still_counts_with_all_its_samples():
    clients = [(100, [0.0, 0.0]), (300, [1.0, 2.0])]
    updates = [Update(k, n, {"w": torch.tensor(w)}, {}) for k, (n, w) in enumerate(clients)]
    assert FedDiv().aggregate(None, updates)["w"].tolist() == [0.75, 1.5]


def test_where_all_clients_skip_the_global_model_stays():
    engine = toy_engine(FedDiv(), batch_size=30)  # n_k = 30: |D̂_k| ≤ B on every client
    start = copy_weights(engine.server.weights)
    play(engine, BEGIN)
    warm = copy_weights(engine.server.weights)
    assert any(not torch.equal(start[name], warm[name]) for name in start)
    update = engine.federation.train([0])[0]
    assert all(torch.equal(update.weights[name], warm[name]) for name in warm)
    rows = play(engine)
    assert all(row["backward"] == 0 and row["train_loss"] is None for row in rows)
    assert all(torch.allclose(engine.server.weights[name], warm[name]) for name in warm)
    assert not np.array_equal(engine.server.state["filter"], FIXED_START)  # the filter goes on


def test_bytes_are_weights_and_six_numbers_each_way():
    engine = toy_engine(FedDiv(), fraction=0.5)
    model = count_bytes(engine.server.weights)
    for row in play(engine):
        clients, main = len(row["clients"]), row["round"] >= BEGIN
        assert row["bytes_down"] == clients * (model + 6 * 8 * main)
        assert row["bytes_up"] == clients * (model + 8 + 6 * 8 * main)  # and n_k


def test_passes_are_two_looks_at_all_samples_and_the_epochs_over_the_chosen_ones():
    # The paper's formula has three looks; the second one serves the filter and the bias alike.
    engine = toy_engine(FedDiv(least_samples=4), fraction=0.5)
    chosen = []
    while engine.round < engine.rounds:
        (row,) = play(engine, engine.round + 1)
        states = [engine.federation.states[k] for k in row["clients"]]
        n = sum(engine.server.sizes[k] for k in row["clients"])
        chosen.append(int(sum((state["targets"] >= 0).sum() for state in states)))
        assert row["backward"] == TRAINING.epochs * chosen[-1]
        assert row["forward"] == TRAINING.epochs * chosen[-1] + (2 * n if row["round"] >= BEGIN else 0)
        if row["round"] < BEGIN:
            assert chosen[-1] == n
    assert any(0 < count < n for count in chosen[BEGIN:])


def test_visits_bias_and_filters_begin_after_the_warm_up():
    engine = toy_engine(FedDiv(), fraction=1.0)
    rows = play(engine, BEGIN)
    assert engine.server.state["filters"] == {}
    assert all(row["method"] == {} for row in rows)
    for state in engine.federation.states.values():
        assert (state["visits"], state["debiased"].unique().tolist()) == (0, [-1])
        assert state["prior"].tolist() == pytest.approx([1 / 3] * 3)
    (row,) = play(engine, BEGIN + 1)
    assert sorted(engine.server.state["filters"]) == list(range(6))
    assert row["method"]["filter_clean_mean"] < row["method"]["filter_noisy_mean"]
    for state in engine.federation.states.values():
        assert state["visits"] == 1
        assert (state["debiased"] >= 0).all()
        assert state["prior"].sum().item() == pytest.approx(1)
        assert state["prior"].tolist() != pytest.approx([1 / 3] * 3, abs=1e-6)


def test_after_a_round_the_labels_are_the_given_ones_unless_they_persist():
    scenario = toy_scenario("sym-1.0:0.3-0.5")
    kept, replaced = (
        toy_engine(FedDiv(persist_relabels=persist, confidence=0.0), scenario, fraction=1.0)
        for persist in (False, True)
    )
    for engine in (kept, replaced):
        play(engine)
    same = [
        [
            torch.equal(e.federation.states[k]["labels"], torch.from_numpy(scenario.given[rows]))
            for e in (kept, replaced)
        ]
        for k, rows in enumerate(scenario.clients)
    ]
    assert all(given for given, _ in same)
    assert not all(given for _, given in same)


@pytest.mark.parametrize("variant", ["", *FedDiv.variants])
def test_degenerate_clients_do_not_crash(variant):
    method = FedDiv(**FedDiv.variants.get(variant, {}), least_samples=0)
    engine = toy_engine(method, degenerate_scenario(), fraction=1.0)
    rows = play(engine)
    assert np.isfinite(rows[-1]["loss"])
    assert np.isfinite(engine.server.state["filter"]).all()
    alone = engine.federation.states[0]  # one sample: equal losses
    assert alone["judged"]["noise_ratio"] == 0.0


def test_a_client_with_equal_losses_sends_no_filter_and_its_old_one_stays():
    engine = toy_engine(FedDiv(), degenerate_scenario())
    engine.server.round = BEGIN
    method, old = engine.method, FIXED_START + 0.01
    engine.server.state["filters"][0] = old
    (update,) = engine.federation.train([0])
    assert "filter" not in update.message
    method.merge_filters(engine.server, [update])
    assert np.array_equal(engine.server.state["filters"][0], old)
    engine.server.state["filters"].clear()
    method.merge_filters(engine.server, [update])
    assert not engine.server.state["filters"]


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FedDiv(least_samples=0, eta=1.0), fraction=1.0)
        play(engine, BEGIN + 1)
        engine.federation.begin_round()
        return engine

    assert_no_step_waits(make_engine)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_first_split_after_a_long_warm_up_finds_the_wrong_labels_of_the_toy_world(seed):
    scenario = toy_scenario("sym-1.0:0.3-0.5", seed=seed)
    method = FedDiv(warmup_share=0.5)
    engine = toy_engine(method, scenario, rounds=20, fraction=1.0)
    play(engine, 11)
    hits = [
        (method.beliefs(engine.server, k, engine.federation.states[k]).clean.numpy() == right).mean()
        for k, rows in enumerate(scenario.clients)
        for right in [(scenario.given == scenario.true)[rows]]
    ]
    assert np.mean(hits) > 0.9
