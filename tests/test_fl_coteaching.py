"""FL-Coteaching against the closed-form checks of its specification."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_methods.fl_coteaching import FLCoteaching
from flnl_methods.fl_coteaching_plus import FLCoteachingPlus
from torch import nn
from two_networks import Fixed, part, rightly_judged
from waits import assert_no_step_waits

from flnl_bench import BadInput
from flnl_bench.api import Server, Terms, Update
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import final_forget_rate, kept_count, mean_of_kept, small_loss
from flnl_bench.testing import (
    TOY_TRAINING,
    degenerate_scenario,
    run_rounds,
    toy_engine,
    toy_scenario,
)

FIRST = [[2.0, 0, 0], [0, 1, 0], [0, 0, 3], [1, 1, 0]]
SECOND = [[0.0, 0, 1], [0, 2, 0], [1, 0, 0], [3, 0, 0]]
LABELS = [0, 1, 2, 0]


def terms_of(rounds=500, expected_noise=0.45):
    return Terms(rounds, 100, 0.1, 10, 32, 10, expected_noise, True)


# -- schedule ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("t", "expected"),
    [(0, 0.0), (1, 0.01875), (5, 0.09375), (12, 0.225), (23, 0.43125), (24, 0.45), (400, 0.45)],
)
def test_the_forget_rate_grows_to_tau_within_25_rounds_of_the_paper(t, expected):
    assert FLCoteaching().forget(t, terms_of()) == pytest.approx(expected, abs=1e-9)


def test_the_forget_rate_is_near_the_papers_form():
    # The paper writes τ·min(T/T_k, 1) with T = t + 1: 0.018, 0.036, 0.108, 0.234, 0.432, 0.45.
    paper = {t: 0.45 * min((t + 1) / 25, 1) for t in (0, 1, 5, 12, 23, 24)}
    assert list(paper.values()) == pytest.approx([0.018, 0.036, 0.108, 0.234, 0.432, 0.45])
    assert all(abs(FLCoteaching().forget(t, terms_of()) - f) <= 0.04 * 0.45 + 1e-12 for t, f in paper.items())


def test_thirty_rounds_reach_tau_in_the_sixth():
    rates = [FLCoteaching().forget(t, terms_of(30)) for t in range(8)]
    assert rates == pytest.approx([0, 0.09, 0.18, 0.27, 0.36, 0.45, 0.45, 0.45])


def test_fewer_rounds_than_the_ramp_is_no_error():
    assert all(0 <= FLCoteaching().forget(t, terms_of(2)) < 0.45 for t in range(2))


# -- tau ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "tau"),
    [
        ("sym-0.6", 0.45),
        ("sym-1.0", 0.75),
        ("asym-0.6", 0.18),
        ("mixed-0.6", 0.18),
        ("asym-1.0", 0.3),
        ("mixed-1.0", 0.3),
    ],
)
def test_tau_is_the_noise_ratio_that_the_setting_announces(setting, tau):
    terms = toy_engine(FedAvg(), toy_scenario(setting)).terms
    assert final_forget_rate(None, terms) == pytest.approx(tau)
    assert FLCoteaching().forget(terms.rounds, terms) == pytest.approx(tau)


def test_clean_labels_are_never_dropped():
    engine = toy_engine(FLCoteaching(), toy_scenario("clean"))
    engine.server.round = 5
    engine.federation.train([0])
    assert engine.federation.states[0]["kept"].all()


def test_every_client_has_the_same_tau():
    engine = toy_engine(FLCoteaching(), toy_scenario("sym-0.5"), fraction=1.0)
    run_rounds(engine)
    dropped = [1 - state["kept"].float().mean().item() for state in engine.federation.states.values()]
    assert len(dropped) == 6
    assert np.ptp(dropped) == 0
    assert dropped[0] > 0.3


def test_natural_noise_needs_a_forget_rate():
    server = Server(terms_of(expected_noise=math.nan), 1, {}, ())
    with pytest.raises(BadInput, match="forget_rate"):
        FLCoteaching().server_state(server)
    FLCoteaching(forget_rate=0.39).server_state(server)
    assert FLCoteaching(forget_rate=0.39).forget(100, server.terms) == 0.39
    with pytest.raises(BadInput, match=r"-0\.2"):
        FLCoteaching(forget_rate=-0.2).server_state(server)


def test_a_tau_of_one_is_lowered_with_a_warning():
    server = Server(terms_of(expected_noise=1.0), 1, {}, ())
    with pytest.warns(UserWarning, match=r"0\.95"):
        FLCoteaching().server_state(server)
    assert FLCoteaching().forget(100, server.terms) == 0.95


# -- selection ---------------------------------------------------------------------------------------
def exchange(forget=0.45):
    """Model, client and loss of the specification's worked example."""
    model = nn.ModuleDict({"first": Fixed(FIRST), "second": Fixed(SECOND)})
    client = SimpleNamespace(scratch={"forget": forget}, state={"kept": torch.ones(4, 2, dtype=torch.bool)})
    batch = SimpleNamespace(x=None, y=torch.tensor(LABELS), index=torch.tensor([3, 2, 1, 0]))
    return model, client, FLCoteaching().loss(model, batch, client)


def test_the_networks_exchange_their_small_losses():
    y = torch.tensor(LABELS)
    l_1, l_2 = (F.cross_entropy(torch.tensor(z), y, reduction="none") for z in (FIRST, SECOND))
    assert l_1.tolist() == pytest.approx([0.239545, 0.551445, 0.094923, 0.861995], abs=1e-6)
    assert l_2.tolist() == pytest.approx([1.551445, 0.239545, 1.551445, 0.094923], abs=1e-6)
    i_1, i_2 = (small_loss(losses, kept_count(4, 0.45)) for losses in (l_1, l_2))
    assert i_1.tolist() == [True, False, True, False]
    assert i_2.tolist() == [False, True, False, True]
    assert mean_of_kept(l_1, i_2).mean().item() == pytest.approx(0.706720, abs=1e-6)
    assert mean_of_kept(l_2, i_1).mean().item() == pytest.approx(1.551445, abs=1e-6)
    # Without the swap both would be 0.167234.
    assert mean_of_kept(l_1, i_1).mean().item() == pytest.approx(0.167234, abs=1e-6)
    assert mean_of_kept(l_2, i_2).mean().item() == pytest.approx(0.167234, abs=1e-6)


def test_the_loss_is_the_sum_of_both_exchanges_and_notes_who_kept_what():
    _, client, loss = exchange()
    assert loss.mean().item() == pytest.approx(0.706720 + 1.551445, abs=1e-6)
    by_row = client.state["kept"].flip(0)  # the batch holds the rows 3, 2, 1, 0
    assert by_row.tolist() == [[True, False], [False, True], [True, False], [False, True]]


def test_a_network_learns_only_from_what_the_other_one_keeps():
    model, _, loss = exchange()
    loss.mean().backward()
    first, second = (net.z.grad for net in model.children())
    assert (first.abs().sum(1) > 0).tolist() == [False, True, False, True]
    assert (second.abs().sum(1) > 0).tolist() == [True, False, True, False]
    probabilities = torch.tensor(FIRST).softmax(1) - F.one_hot(torch.tensor(LABELS), 3)
    # A plain mean of two, and of L_1 alone.
    assert torch.allclose(first[[1, 3]], probabilities[[1, 3]] / 2, atol=1e-6)


# -- prediction and averages ---------------------------------------------------------------------------
def test_the_prediction_is_the_sum_of_logits_not_of_probabilities():
    model = nn.ModuleDict({"first": Fixed([[6.0, 0, 0]]), "second": Fixed([[-4, 2.5, 0]])})
    logits = FLCoteaching().predict(model, torch.zeros(1))
    assert logits.tolist() == [[2.0, 2.5, 0.0]]
    mean = (model["first"].z.softmax(1) + model["second"].z.softmax(1)) / 2
    assert mean[0].tolist() == pytest.approx([0.498227, 0.462663, 0.039110], abs=1e-6)
    assert (logits.argmax(1).item(), mean.argmax(1).item()) == (1, 0)


def test_each_network_is_averaged_with_its_own_kind_by_full_sizes():
    values = [((1.0, 2.0), 100), ((3.0, 4.0), 300), ((5.0, 6.0), 600)]
    updates = [
        Update(k, n, {"first.w": torch.tensor(a), "second.w": torch.tensor(b)}, {})
        for k, ((a, b), n) in enumerate(values)
    ]
    mean = FLCoteaching().aggregate(Server(terms_of(), 1, {}, ()), updates)
    assert [mean["first.w"].item(), mean["second.w"].item()] == pytest.approx([4.0, 5.0])


def test_the_networks_start_from_different_draws_the_first_from_that_of_fedavg():
    weights = toy_engine(FLCoteaching()).server.weights
    first, second = part(weights, "first"), part(weights, "second")
    alone = toy_engine(FedAvg()).server.weights
    assert all(torch.equal(first[name], alone[name]) for name in alone)
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_equal_networks_stay_equal_to_the_bit():
    class Twins(FLCoteaching):
        """Both networks from one draw."""

        name = "twins"

        def build(self, new_net):
            net = new_net()
            return nn.ModuleDict({"first": net, "second": copy.deepcopy(net)})

    engine = toy_engine(Twins(), rounds=4)
    run_rounds(engine)
    first, second = (part(engine.server.weights, name) for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_forgetting_each_network_is_a_fedavg_client():
    both, alone = toy_engine(FLCoteaching(forget_rate=0.0), epochs=1), toy_engine(FedAvg(), epochs=1)
    for engine in (both, alone):
        engine.server.round = 5
    trained = part(both.federation.train([0])[0].weights, "first")
    expected = alone.federation.train([0])[0].weights
    assert all(torch.allclose(trained[name], expected[name], atol=1e-6) for name in expected)


def test_the_dropped_samples_still_enter_batchnorm():
    def means(forget):
        engine = toy_engine(FLCoteaching(forget_rate=forget), batch_size=64, epochs=1)  # one batch an epoch
        engine.server.round = 5
        weights = engine.federation.train([0])[0].weights
        return next(t for name, t in weights.items() if name.endswith("running_mean"))

    assert torch.equal(means(0.0), means(0.75))


# -- cost, degenerate cases, beliefs -------------------------------------------------------------------
def test_it_costs_two_models_each_way_and_two_passes():
    engine, alone = toy_engine(FLCoteaching()), toy_engine(FedAvg())
    model = count_bytes(alone.server.weights)
    for row in run_rounds(engine):
        clients = len(row["clients"])
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["bytes_down"] == clients * 2 * model
        assert row["bytes_up"] == clients * (2 * model + 8)  # and n_k
        assert row["forward"] == row["backward"] == 2 * TOY_TRAINING.epochs * samples


def test_the_forget_rate_of_each_round_is_recorded():
    rates = [row["method"]["forget_rate"] for row in run_rounds(toy_engine(FLCoteaching(forget_rate=0.4)))]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.4, 0.4, 0.4])


@pytest.mark.parametrize("forget", [0.0, 0.75, 0.95])
def test_degenerate_clients_do_not_crash(forget):
    # One sample, two samples, one class, all labels wrong; at 0.75 batches under four samples keep one.
    engine = toy_engine(FLCoteaching(forget_rate=forget), degenerate_scenario(), fraction=1.0, rounds=4)
    rows = run_rounds(engine)
    assert all(np.isfinite([row["loss"], row["train_loss"]]).all() for row in rows)
    assert engine.federation.states[0]["kept"].all()  # the only sample is always kept


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FLCoteaching())
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)


def test_what_both_keep_is_believed_clean():
    kept = torch.tensor([[True, True], [True, False], [False, False], [False, True]])
    server = Server(terms_of(), 1, {}, ())
    beliefs = FLCoteaching().beliefs(server, 0, {"kept": kept, "judged": True})
    assert beliefs.clean.tolist() == [True, False, False, False]
    assert beliefs.numbers == {"networks_agree": 0.5}
    assert FLCoteaching().beliefs(server, 0, {"kept": kept, "judged": False}).clean is None


def test_round_0_drops_nothing_and_judges_nothing():
    engine = toy_engine(FLCoteaching(), fraction=1.0)
    for judged in (False, True):
        engine.run_round()
        assert engine.federation.states[0]["judged"] is judged


def test_the_selection_finds_wrong_labels_in_the_toy_world():
    assert rightly_judged(FLCoteaching(), rounds=15) > 0.8


# -- Co-teaching+ --------------------------------------------------------------------------------------
ONE = [[2.0, 0, 0], [0, 1, 0], [0, 0, 3], [1, 1.5, 0], [0, 2, 0], [1, 0, 0]]
TWO = [[0.0, 0, 1], [0, 2, 0], [1, 0, 0], [3, 0, 0], [0, 0, 1], [2, 0, 0]]


def plus_step(forget, one=ONE, two=TWO, empty="all", **options):
    """The loss of a batch, the gradients of both networks, and the client."""
    nets = nn.ModuleDict({"first": Fixed(one), "second": Fixed(two)}).double()  # so that ties are ties
    terms = terms_of(40)
    state, y = {}, torch.tensor([0, 1, 2, 0, 1, 2])
    client = SimpleNamespace(round=10, terms=terms, state=state, scratch={}, held={}, y=y, size=6)
    method = FLCoteachingPlus(forget_rate=forget, empty=empty, ramp_rounds=1, **options)
    method.on_receive(nets, client)
    batch = SimpleNamespace(x=None, y=y, index=torch.arange(6))
    loss = method.loss(nets, batch, client).mean()
    loss.backward()
    return loss.item(), [net.z.grad.abs().sum(1) for net in nets.children()], client


@pytest.mark.parametrize(
    ("forget", "first", "second", "rows"),
    [(0.45, 0.671838, 1.551445, [0, 3]), (0.0, 0.419536, 1.187314, [0, 2, 3, 4])],
)
def test_small_losses_are_chosen_among_disagreements(forget, first, second, rows):
    loss, gradients, client = plus_step(forget)
    assert loss == pytest.approx(first + second, abs=1e-5)
    assert gradients[0].nonzero().flatten().tolist() == rows  # network 1 trains on what network 2 keeps
    batches, shares, empty = client.state["disagreement"].tolist()
    assert (batches, shares, empty) == (1, pytest.approx(4 / 6), 0)


def test_the_authors_second_softmax_keeps_the_same_samples():
    loss, gradients, _ = plus_step(0.45, double_softmax=True)
    assert loss == pytest.approx(0.907465 + 1.235276, abs=1e-5)
    assert gradients[0].nonzero().flatten().tolist() == [0, 3]


def test_a_batch_without_disagreement_is_trained_on_whole_in_part_or_not_at_all():
    loss, gradients, client = plus_step(0.45, two=ONE)
    assert loss == pytest.approx(2 * 0.630172, abs=1e-5)
    assert (gradients[0] > 0).all()
    assert client.state["disagreement"].tolist() == [1, 0, 1]
    assert (plus_step(0.45, two=ONE, empty="small")[1][0] > 0).sum() == 3
    _, gradients, client = plus_step(0.45, two=ONE, empty="skip")
    assert [bool(flag) for flag in client.held.values()] == [True, True]
    assert plus_step(0.45, empty="skip")[2].held["first"].item() is False


def test_before_its_round_it_is_co_teaching_to_the_bit_and_then_sends_as_much():
    plus, plain = (toy_engine(method) for method in (FLCoteachingPlus(disagree_from=3), FLCoteaching()))
    rows, others = run_rounds(plus), run_rounds(plain)
    for row, other in zip(rows, others, strict=True):
        assert (row["loss"] == other["loss"]) == (row["round"] < 3)
        assert [row[name] for name in ("bytes_down", "bytes_up", "forward", "backward")] == [
            other[name] for name in ("bytes_down", "bytes_up", "forward", "backward")
        ]
    last = rows[-1]["clients"][0]
    numbers = plus.method.beliefs(plus.server, last, plus.federation.states[last]).numbers
    assert 0 <= numbers["disagreement"] <= 1


def test_no_step_of_plus_waits_for_the_device():
    assert_no_step_waits(lambda: toy_engine(FLCoteachingPlus(disagree_from=0)))
