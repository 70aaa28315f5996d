"""FedExP and FedDyn against the closed-form checks of their specification."""

import numpy as np
import pytest
import torch
from federations import WIDE
from flnl_methods.fedavg import FedAvg
from flnl_more.server_steps import FedDyn, FedExP, extrapolated

from flnl_bench.api import Server, Terms, Update
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine


def weights(*values):
    return {"w": torch.tensor(values, dtype=torch.float64)}


def updates(deltas, sizes=None, start=(1.0, 1.0)):
    sizes = sizes or [1] * len(deltas)
    models = [weights(*(w + d for w, d in zip(start, delta, strict=True))) for delta in deltas]
    return [Update(k, n, model, {}) for k, (n, model) in enumerate(zip(sizes, models, strict=True))]


# -- FedExP --------------------------------------------------------------------------------------------
APART = [(0.3, 0.0), (0.0, 0.4), (-0.3, -0.1)]


@pytest.mark.parametrize(
    ("deltas", "sizes", "epsilon", "ratio", "end"),
    [
        (APART, None, 1e-12, 5.833333, None),
        (APART, None, 1e-3, 4.487179, (1, 1.448718)),
        ([(3.0, 0.0), (0.0, 4.0), (-1.0, 1.0)], [100, 300, 100], 1e-12, 0.852601, (1.4, 3.6)),
        ([(3.0, 0.0), (0.0, 4.0), (-1.0, 1.0)], None, 1e-12, 1.396552, None),
        ([(1.0, 0.0), (-1.0, 0.0)], None, 1e-3, 250, (1, 1)),
        ([(0.5, 0.5), (0.5, 0.5)], None, 1e-12, 0.5, (1.5, 1.5)),
    ],
)
def test_the_step_grows_with_the_spread_of_the_updates(deltas, sizes, epsilon, ratio, end):
    new, step, found = extrapolated(weights(1.0, 1.0), updates(deltas, sizes), epsilon)
    assert found == pytest.approx(ratio, abs=1e-5)
    assert step == max(1, found)
    assert end is None or new["w"].tolist() == pytest.approx(end, abs=1e-5)


@pytest.mark.parametrize(
    ("length", "epsilon", "ratio"), [(1, 1e-12, 5), (0.1, 1e-3, 0.454545), (0.01, 1e-3, 0.004995)]
)
def test_orthogonal_updates_give_half_their_number_unless_they_are_short(length, epsilon, ratio):
    deltas = [tuple(length * row) for row in np.eye(10)]
    found = extrapolated(weights(*[1.0] * 10), updates(deltas, None, [1.0] * 10), epsilon)[2]
    assert found == pytest.approx(ratio, abs=1e-6)


def test_the_mean_of_the_last_two_iterates_is_tested():
    server = Server(Terms(3, 1, 1.0, 1, 1, 2, 0.0, True), 1, weights(0.0), ())
    server.state, tested = {"sent": None}, []
    for iterate in (1.0, 3.0, 4.0):
        FedExP().step(server, [Update(0, 1, weights(iterate), {})])
        tested.append(server.weights["w"].item())
        server.weights = server.state["sent"]
    assert tested == [1, 2, 3.5]


def test_where_the_step_is_one_fedexp_is_fedavg_to_the_bit():
    engine, plain = toy_engine(FedExP(epsilon=1e9, average_last=False)), toy_engine(FedAvg())
    rows = run_rounds(engine)
    assert [row["loss"] for row in rows] == [row["loss"] for row in run_rounds(plain)]
    assert {row["method"]["server_step"] for row in rows} == {1.0}


# -- FedDyn --------------------------------------------------------------------------------------------
def solved(a, b, sizes, alpha, sampled, scaled=True):
    """Rounds with clients that minimise ½a(θ − b)² exactly; return w⁺, −αG and the tested weights."""
    method = FedDyn(alpha=alpha, scaled=scaled)
    clients = len(a)
    server = Server(Terms(9, clients, 1.0, 1, 1, 2, 0.0, True), 1, weights(1.0), tuple(sizes))
    server.state = method.server_state(server)
    remembered, sent, tested = [0.0] * clients, [], []
    for chosen in sampled:
        w = server.weights["w"].item() if server.state["sent"] is None else server.state["sent"]["w"].item()
        server.weights = weights(w)
        answers = []
        for k in chosen:
            strength = method.inbox(server, k)["strength"]
            theta = (a[k] * b[k] + remembered[k] + strength * w) / (a[k] + strength)
            remembered[k] -= strength * (theta - w)
            assert remembered[k] == pytest.approx(a[k] * (theta - b[k]))  # the gradient there
            answers.append(Update(k, sizes[k], weights(theta), {}))
        method.step(server, answers)
        sent.append(server.state["sent"]["w"].item())
        tested.append(server.weights["w"].item())
    return sent, tested, -alpha * server.state["moves"]["w"].item()


def test_local_optima_agree_with_that_of_all_samples():
    both = [(0, 1)] * 40
    sent, tested, _ = solved((1, 2), (0, 3), (1, 1), 1.0, both)
    assert sent[:3] == pytest.approx([1.833333, 1.916667, 1.958333], abs=1e-6)
    assert tested[0] == pytest.approx(1.416667, abs=1e-6)
    assert sent[-1] == pytest.approx(2)  # where FedAvg stays at 1.5
    sent, _, _ = solved((1, 2), (0, 3), (100, 300), 1.0, both)
    assert sent[:3] == pytest.approx([2.166667, 2.5, 2.618056], abs=1e-6)
    assert sent[-1] == pytest.approx(18 / 7)


def test_feddyn_can_test_what_it_sends():
    server = Server(
        Terms(9, 1, 1.0, 1, 1, 2, 0.0, True),
        1,
        weights(1.0),
        (1,),
        state={"sent": None, "moves": weights(0.25)},
    )
    FedDyn(evaluate="sent").step(server, [Update(0, 1, weights(2.0), {})])
    assert server.weights["w"].item() == server.state["sent"]["w"].item() != 2.0


def test_clients_that_come_now_and_then_are_as_in_the_specification():
    sent, tested, correction = solved(
        (1, 2, 1), (0, 3, 6), (1, 1, 1), 0.5, [(0, 1), (2, 0), (1, 2)], scaled=False
    )
    assert sent == pytest.approx([1.777778, 3.632099, 4.406036], abs=1e-6)
    assert tested == pytest.approx([1.466667, 2.703704, 3.539424], abs=1e-6)
    assert correction == pytest.approx(-0.433306, abs=1e-6)


def test_the_first_step_of_a_client_is_fedavgs_and_its_memory_follows_its_move():
    dyn, plain = (toy_engine(method, WIDE, epochs=1, batch_size=999) for method in (FedDyn(), FedAvg()))
    (moved,), (other,) = dyn.federation.train([0]), plain.federation.train([0])
    assert all(torch.equal(moved.weights[name], w) for name, w in other.weights.items())
    strength = FedDyn().inbox(dyn.server, 0)["strength"]
    names = [name for name in moved.weights if not name.endswith(("running_mean", "running_var"))]
    for name, h in zip(names, dyn.federation.states[0]["gradient"], strict=True):
        torch.testing.assert_close(h, -strength * (moved.weights[name] - dyn.server.weights[name]))
    dyn.run_round()
    assert any(h.abs().max() > 0 for h in dyn.federation.states[0]["gradient"])


@pytest.mark.parametrize(("method", "message"), [(FedExP(), 0), (FedDyn(), 8)])
def test_they_send_and_compute_what_fedavg_does(method, message):
    engine = toy_engine(method)
    model = count_bytes(engine.server.weights)
    for row in run_rounds(engine, rounds=3):
        assert (row["bytes_down"], row["bytes_up"]) == (3 * (model + message), 3 * (model + 8))
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples
    assert row["method"]["server_step" if message == 0 else "correction"] > 0


@pytest.mark.parametrize("method", [FedExP(epsilon=1e-9), FedDyn()])
def test_a_round_without_answers_changes_nothing(method):
    engine = toy_engine(method)
    run_rounds(engine, rounds=2)
    before, sent = dict(engine.server.weights), dict(engine.server.state["sent"])
    engine.federation.drop = 0.999999
    engine.run_round()
    assert all(torch.equal(w, before[name]) for name, w in engine.server.weights.items())
    assert all(torch.equal(w, sent[name]) for name, w in engine.server.state["sent"].items())
