"""FedEFC and forward correction against the closed-form checks of their specifications."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from federations import WIDE, terms_of
from flnl_methods.fedavg import FedAvg
from flnl_more.loss_correction import (
    FedEFC,
    Forward,
    calibrated,
    confident_joint,
    corrected_cross_entropy,
    given_by_true,
    shrunk,
    surest,
)
from waits import assert_no_step_waits

from flnl_bench.api import Server
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

QUICK = FedEFC(monitor_share=0.0, patience=1)  # corrects from round 3 on in the toy world


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def joint(p, y):
    counts, guesses = confident_joint(matrix(*p), torch.tensor(y))
    return counts.tolist(), guesses.tolist()


def near(tensor, *rows):
    torch.testing.assert_close(tensor, matrix(*rows), atol=1e-6, rtol=0)


# -- the confident joint -----------------------------------------------------------------------------
SEVEN = [(0.7, 0.2, 0.1), (0.6, 0.3, 0.1), (0.2, 0.7, 0.1), (0.1, 0.8, 0.1), (0.3, 0.6, 0.1),
         (0.55, 0.40, 0.05), (0.34, 0.33, 0.33)]  # fmt: skip
TEN = [(0.8, 0.1, 0.1), (0.6, 0.3, 0.1), (0.2, 0.7, 0.1), (0.1, 0.8, 0.1), (0.1, 0.6, 0.3), (0.7, 0.2, 0.1),
       (0.2, 0.2, 0.6), (0.1, 0.1, 0.8), (0.1, 0.7, 0.2), (0.4, 0.35, 0.25)]  # fmt: skip


@pytest.mark.parametrize(
    ("p", "y", "guesses", "counts"),
    [
        (SEVEN, [0, 0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0, -1], [[2, 1, 0], [1, 2, 0], [0, 0, 1]]),
        # several classes are confident: the largest score of all wins
        ([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.5, 0.25, 0.25)], [0, 1, 2], [0, 0, 0],
         [[1, 0, 0], [1, 1, 0], [1, 0, 1]]),
        ([(0.3, 0.7), (0.6, 0.4)], [1, 1], [1, -1], [[1, 0], [0, 1]]),
        ([(1 / 3,) * 3] * 4, [0, 1, 2, 0], [0] * 4, [[2, 0, 0], [1, 1, 0], [1, 0, 1]]),
        (TEN, [0, 0, 0, 1, 1, 1, 2, 2, 2, 0], [0, 0, 1, 1, 1, 0, 2, 2, 1, -1],
         [[2, 1, 0], [1, 2, 0], [0, 1, 2]]),
    ],
)  # fmt: skip
def test_confident_scores_are_counted_against_given_labels(p, y, guesses, counts):
    assert joint(p, y) == (counts, guesses)
    order = [*range(len(y))][::-1]
    assert joint([p[i] for i in order], [y[i] for i in order])[0] == counts


def test_the_columns_of_the_counts_become_chances_of_the_given_label():
    near(
        given_by_true(matrix((2, 1, 0), (1, 2, 0), (0, 0, 1))),
        (2 / 3, 1 / 3, 0),
        (1 / 3, 2 / 3, 0),
        (0, 0, 1),
    )
    near(given_by_true(matrix((3, 0), (1, 0))), (0.75, 0), (0.25, 1))  # a class that nobody guesses


def test_counts_are_calibrated_to_the_given_labels_and_shrunk_to_the_federations():
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 0])
    counts = calibrated(confident_joint(matrix(*TEN), y).counts, y)
    near(counts, (8 / 3, 4 / 3, 0), (1, 2, 0), (0, 1, 2))
    near(given_by_true(counts).T, (0.727273, 0.272727, 0), (0.307692, 0.461538, 0.230769), (0, 0, 1))
    assert 1 - (counts.trace() / counts.sum()).item() == pytest.approx(1 / 3)
    shared = 0.85 * torch.eye(3, dtype=torch.float64) + 0.05
    near(
        shrunk(counts, shared, 10).T,
        (0.853659, 0.109756, 0.036585),
        (0.127907, 0.767442, 0.104651),
        (0.041667, 0.041667, 0.916667),
    )


# -- the loss ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("transitions", "losses", "gradients"),
    [
        (
            [(2 / 3, 1 / 3, 0), (1 / 3, 2 / 3, 0), (0, 0, 1)],
            (0.644223, 0.954774, 2.407606),
            ((-0.179397, 0.089366, 0.090031), (0.089124, -0.179155, 0.090031),
             (0.665241, 0.244728, -0.909969)),
        ),
        (
            [(0.8, 0.1, 0), (0.2, 0.6, 0), (0, 0.3, 1)],
            (0.585791, 1.273375, 1.811254),
            ((-0.290796, 0.200765, 0.090031), (0.189874, -0.279905, 0.090031),
             (0.665241, -0.204454, -0.460787)),
        ),
        (  # the matrix of `forward`, rows: the true class
            [*zip((0.7, 0.2, 0.1), (0, 1, 0), (0.3, 0.3, 0.4), strict=True)],
            (0.707900, 0.904397, 2.277538),
            ((-0.279938, 0.244728, 0.035209), (0.336553, -0.359859, 0.023306),
             (0.016455, 0.244728, -0.261184)),
        ),
    ],
)  # fmt: skip
def test_the_corrected_loss_and_its_gradient_are_those_of_the_specification(transitions, losses, gradients):
    logits = matrix(*[(2, 1, 0)] * 3).requires_grad_()
    values = corrected_cross_entropy(logits, torch.arange(3), matrix(*transitions))
    values.sum().backward()
    torch.testing.assert_close(values.detach(), matrix(losses)[0], atol=1e-6, rtol=0)
    near(logits.grad, *gradients)


def test_without_errors_the_loss_is_cross_entropy():
    logits, y = matrix((2, 1, 0), (0, 3, -1)), torch.tensor([2, 1])
    plain = F.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(corrected_cross_entropy(logits, y, torch.eye(3).double()), plain)


# -- FedEFC: when it begins ----------------------------------------------------------------------------
def stopped(means, monitor, patience):
    """T_e for a series of mean accuracies."""
    method = FedEFC(monitor_share=monitor / 200, patience=patience)
    server = Server(terms_of(200), 1, {}, ())
    server.state = method.server_state(server)
    for server.round, mean in enumerate(means):
        method.watch(server, [mean - 0.1, mean + 0.1])
    return server.state["prestop_round"]


SERIES = [0.9, 0.95, 0.2, 0.3, 0.31, 0.30, 0.31, 0.29, 0.33, 0.33, 0.32, 0.31, 0.40]


@pytest.mark.parametrize(
    ("means", "monitor", "patience", "end"),
    [(SERIES, 2, 3, 7), (SERIES, 2, 4, None), ([0.5] * 60, 40, None, 47)],
)
def test_the_correction_begins_after_some_rounds_without_a_record(means, monitor, patience, end):
    assert stopped(means, monitor, patience) == end


@pytest.mark.parametrize(
    ("rounds", "monitor", "patience"), [(500, 100, 15), (200, 40, 6), (175, 35, 5), (50, 10, 3), (30, 6, 3)]
)
def test_watching_scales_with_the_rounds(rounds, monitor, patience):
    terms = terms_of(rounds)
    assert (FedEFC().first_watched(terms), FedEFC().waits(terms)) == (monitor, patience)


def test_before_its_correction_it_is_fedavg_to_the_bit():
    engine, plain = toy_engine(FedEFC(patience=99)), toy_engine(FedAvg())
    for row, other in zip(run_rounds(engine), run_rounds(plain), strict=True):
        assert (row["accuracy"], row["loss"]) == (other["accuracy"], other["loss"])
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["forward"] == other["forward"] + samples
        assert row["bytes_up"] == other["bytes_up"] + 3 * 8
        assert row["bytes_down"] == other["bytes_down"]
        assert row["method"]["prestop_round"] == -1


def test_afterwards_a_flag_goes_down_and_one_more_look_is_taken_per_visit():
    engine = toy_engine(QUICK, WIDE)
    rows = run_rounds(engine)
    begin = int(rows[-1]["method"]["prestop_round"]) + 1
    assert QUICK.warmup(engine.terms) <= begin < 6
    model = count_bytes(engine.server.weights)
    for row in rows[begin:]:
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["bytes_down"] == 3 * (model + 8)
        assert row["bytes_up"] == 3 * (model + 8)
        assert (row["forward"], row["backward"]) == (
            (TOY_TRAINING.epochs + 1) * samples,
            TOY_TRAINING.epochs * samples,
        )
    judged = [k for k, state in engine.federation.states.items() if "guesses" in state]
    assert {*judged} == {k for row in rows[begin:] for k in row["clients"]}
    about = QUICK.beliefs(engine.server, judged[0], engine.federation.states[judged[0]])
    assert 0 <= about.noise_ratio <= 1
    assert (about.clean_probability >= 0).all()


def test_released_reports_the_running_accuracy_of_training():
    engine = toy_engine(FedEFC(accuracy="training", view="weak", patience=99))
    (row,) = run_rounds(engine, rounds=1)
    assert row["forward"] == row["backward"]
    (update,) = engine.federation.train([0])
    assert 0 < update.message["accuracy"] <= 1


def test_the_clean_probability_is_that_of_the_specification():
    y = torch.arange(3)
    transitions = matrix((0.8, 0.1, 0), (0.2, 0.6, 0), (0, 0.3, 1))
    likely = transitions[y] * matrix((2, 1, 0)).softmax(1)
    own = likely.gather(1, y[:, None])[:, 0] / likely.sum(1)
    assert own.tolist() == pytest.approx([0.956037, 0.524633, 0.550817], abs=1e-6)
    client = client_with(SEVEN, [0, 0, 0, 1, 1, 1, 0])
    QUICK.on_receive(None, client)
    q = client.scratch["transitions"].double()
    likely = q[client.y] * matrix(*SEVEN)
    expected = likely.gather(1, client.y[:, None])[:, 0] / likely.sum(1)
    torch.testing.assert_close(client.state["right"].double(), expected, atol=1e-5, rtol=0)


def client_with(p, y):
    """A client whose received model gives these probabilities, after the prestop."""
    scores = torch.tensor(p).log()
    return SimpleNamespace(
        inbox={"correct": True}, y=torch.tensor(y), state={}, scratch={}, terms=SimpleNamespace(classes=3),
        received=lambda x: scores, map=lambda fn, views: fn(SimpleNamespace(x=None)),
    )  # fmt: skip


# -- forward -------------------------------------------------------------------------------------------
def test_all_clients_count_once_and_then_carry_the_shared_matrix():
    engine = toy_engine(Forward(), WIDE)
    rows, model, number = run_rounds(engine), count_bytes(engine.server.weights), 3 * 3 * 4
    first = Forward().warmup(engine.terms)
    plain = run_rounds(toy_engine(FedAvg(), WIDE))
    assert [row["loss"] for row in rows[:first]] == [row["loss"] for row in plain[:first]]
    assert rows[first - 1]["bytes_down"] == (3 + 6) * model
    assert rows[first - 1]["bytes_up"] == 3 * (model + 8) + 6 * number
    for row in rows[first:]:
        assert row["bytes_down"] == 3 * (model + number)
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples
    assert torch.allclose(engine.server.state["transitions"].sum(0), torch.ones(3))
    assert 0 < Forward().beliefs(engine.server, 0, engine.federation.states[0]).noise_ratio < 1


def test_with_one_scope_clients_share_one_matrix_and_a_client_with_few_samples_takes_it():
    shared = 0.85 * torch.eye(3) + 0.05
    for method, size, own in (
        (Forward(), 10, True),
        (Forward(scope="global"), 10, False),
        (Forward(), 2, False),
    ):
        client = SimpleNamespace(
            inbox={"transitions": shared}, state={"counts": torch.eye(3) * 5}, scratch={}, size=size,
            terms=SimpleNamespace(classes=3),
        )  # fmt: skip
        method.on_receive(None, client)
        assert (client.scratch["transitions"][0, 0] > 0.91) == own


def test_anchors_are_the_surest_samples_of_all_clients():
    answers = {
        0: {"scores": torch.tensor([0.9, 0.5]), "rows": torch.tensor([[0.9, 0.1], [0.5, 0.5]])},
        1: {"scores": torch.tensor([0.6, 0.8]), "rows": torch.tensor([[0.6, 0.4], [0.2, 0.8]])},
    }
    client = client_with([[0.6, 0.4], [0.1, 0.9], [0.2, 0.8]], [0, 1, 1])
    client.map = lambda fn: fn(SimpleNamespace(x=None))
    own = Forward(estimate="anchor").anchors(client)
    assert own["scores"].tolist() == pytest.approx([0.6, 0.9])
    assert torch.allclose(own["rows"], torch.tensor([[0.6, 0.4], [0.1, 0.9]]))
    engine = toy_engine(Forward(estimate="anchor", scope="client"), WIDE)
    rows = run_rounds(engine)
    first, model = Forward().warmup(engine.terms), count_bytes(engine.server.weights)
    assert rows[first - 1]["bytes_up"] == 3 * (model + 8) + 6 * (3 + 9) * 4
    assert torch.allclose(engine.server.state["transitions"].sum(0), torch.ones(3))
    assert 0 < rows[first - 1]["method"]["estimated_noise"] < 1
    assert torch.allclose(surest(answers), torch.tensor([[0.9, 0.2], [0.1, 0.8]]))


@pytest.mark.parametrize("method", [QUICK, FedEFC(accuracy="training"), Forward()])
def test_no_step_waits_for_the_device(method):
    def make_engine():
        engine = toy_engine(method)
        engine.server.round = 5
        state = engine.server.state
        state.update({"prestop_round": 0} if method is QUICK else {})
        if isinstance(method, Forward):
            engine.federation.visit([0], method.count)
            state["transitions"] = torch.eye(3)
        return engine

    assert_no_step_waits(make_engine)
