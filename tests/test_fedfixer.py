"""FedFixer against the closed-form checks of its specification."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedfixer import FedFixer, confident_loss, label_prior, sieve
from torch import nn
from two_networks import Fixed, part, rightly_judged
from waits import assert_no_step_waits

from flnl_bench import BadInput
from flnl_bench.api import Server, Terms, copy_weights, network_weights
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import mean_of_kept
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine, toy_scenario

LOGITS = [[2.0, 0, 0], [0, 0, 0], [0, 3, 0], [1, 1, 0]]
LABELS = [0, 1, 0, 1]
UNIFORM = torch.full((3,), 1 / 3)


def terms_of(rounds=10, expected_noise=0.4, classes=3):
    return Terms(rounds, 6, 0.5, 2, 16, classes, expected_noise, True)


def pair(z_w, z_theta):
    return nn.ModuleDict({"shared": Fixed(z_w), "personal": Fixed(z_theta)})


def loss_of(method, model, received, y, t):
    """The loss of one batch with the uniform prior, and the client's state after it."""
    state = {"prior": UNIFORM, "kept": torch.ones(len(y), 2, dtype=torch.bool)}
    client = SimpleNamespace(terms=terms_of(), round=t, state=state, received=received, held={})
    batch = SimpleNamespace(x=None, y=torch.tensor(y), index=torch.arange(len(y)))
    return method.loss(model, batch, client), state


# -- filter ------------------------------------------------------------------------------------------
def test_the_sieve_compares_the_label_logit_with_the_mean_logit():
    z, y = torch.tensor(LOGITS), torch.tensor(LABELS)
    ce = F.cross_entropy(z, y, reduction="none")
    mean = -F.log_softmax(z, 1).mean(1)
    assert ce.tolist() == pytest.approx([0.239545, 1.098612, 3.094923, 0.861995], abs=1e-6)
    assert mean.tolist() == pytest.approx([1.572878, 1.098612, 2.094923, 1.195328], abs=1e-6)
    assert (ce - mean).tolist() == pytest.approx([-1.333333, 0, 1, -0.333333], abs=1e-6)
    assert sieve(z, y).tolist() == [True, True, False, True]


@pytest.mark.parametrize("value", [0.1, -0.3, 1e4, 1 / 3])
def test_equal_logits_keep_every_sample_whatever_their_rounding(value):
    assert sieve(torch.full((7, 7), value), torch.arange(7)).all()


def test_a_warm_up_keeps_everything():
    class Short(FedFixer):
        """T_w = 2."""

        name = "short"

        def warmup(self, terms):
            return 2

    adversarial, y = torch.tensor([[-9.0, 5, 5], [5, -9, 5]]), torch.tensor([0, 1])
    for filter in ("sieve", "small_loss"):
        kept = [Short(filter=filter).keep(adversarial, y, t, terms_of()).sum().item() for t in (0, 1)]
        assert kept == [2, 2]
    assert Short().keep(adversarial, y, 2, terms_of()).tolist() == [False, False]


@pytest.mark.parametrize(("rounds", "expected"), [(500, 100), (60, 12), (30, 6), (10, 3), (1, 3)])
def test_the_warm_up_is_a_fifth_of_the_rounds_but_at_least_three(rounds, expected):
    assert FedFixer().warmup(terms_of(rounds)) == expected


def test_the_confidence_weight_grows_over_a_tenth_of_the_rounds_after_the_warm_up():
    rounds = terms_of(500)
    values = [FedFixer().beta(t, rounds) for t in (0, 99, 100, 125, 150, 499)]
    assert values == pytest.approx([0, 0, 0, 0.05, 0.1, 0.1])
    assert FedFixer().beta(1, terms_of(1)) == 0.0


def test_the_other_filter_keeps_small_losses_at_a_rate_that_grows_after_the_warm_up():
    method, terms = FedFixer(filter="small_loss", forget_rate=0.5), terms_of(30)  # T_w = T_k = 6
    logits, y = torch.arange(10.0).unsqueeze(1) * torch.tensor([[1.0, 0, 0]]), torch.zeros(10).long()
    counts = [method.keep(logits, y, t, terms).sum().item() for t in (5, 6, 8, 11, 29)]
    assert counts == [10, 10, 8, 5, 5]
    assert method.keep(logits, y, 29, terms).tolist() == [False] * 5 + [True] * 5
    assert FedFixer(filter="small_loss").keep(logits, y, 29, terms).sum().item() == 6  # τ = 0.4 announced


def test_natural_noise_needs_a_forget_rate_for_that_filter_only():
    server = Server(terms_of(expected_noise=math.nan), 1, {}, ())
    assert FedFixer().server_state(server) == {}
    with pytest.raises(BadInput, match="forget_rate"):
        FedFixer(filter="small_loss").server_state(server)
    assert FedFixer(filter="small_loss", forget_rate=0.39).server_state(server) == {}


# -- regularisers --------------------------------------------------------------------------------------
def test_the_confidence_regulariser_subtracts_the_loss_expected_under_the_prior():
    z, y, prior = torch.tensor(LOGITS), torch.tensor(LABELS), torch.tensor([0.5, 0.3, 0.2])
    expected = 2 * (confident_loss(z, y, prior, 0.0) - confident_loss(z, y, prior, 0.5))
    assert expected.tolist() == pytest.approx([1.239545, 1.098612, 2.194923, 1.061995], abs=1e-5)
    loss = confident_loss(z, y, prior, 0.5)
    assert loss.tolist() == pytest.approx([-0.380228, 0.549306, 1.997461, 0.330997], abs=1e-6)
    assert mean_of_kept(loss, sieve(z, y)).mean().item() == pytest.approx(0.166692, abs=1e-6)
    uniform = confident_loss(z, y, UNIFORM, 0.5)
    assert uniform.tolist() == pytest.approx([-0.546894, 0.549306, 2.047461, 0.264331], abs=1e-6)
    assert torch.equal(confident_loss(z, y, prior, 0.0), F.cross_entropy(z, y, reduction="none"))


@pytest.mark.parametrize(("beta", "bottom"), [(2.0, -33.157225), (0.1, -1.657861)])
def test_the_confidence_regulariser_is_bounded(beta, bottom):
    one_hot = torch.zeros(1, 10)
    one_hot[0, 4] = 1e4
    loss = confident_loss(one_hot, torch.tensor([4]), torch.full((10,), 0.1), beta)
    assert loss.item() == pytest.approx(bottom, abs=1e-4)


def test_the_prior_is_the_label_histogram_plus_one():
    assert label_prior(torch.tensor([0, 0, 2]), 3).tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])
    assert label_prior(torch.zeros(30).long(), 3).tolist() == pytest.approx([31 / 33, 1 / 33, 1 / 33])


def test_with_one_class_the_regulariser_scales_the_cross_entropy():
    z, y = torch.tensor(LOGITS), torch.zeros(4).long()
    scaled = confident_loss(z, y, torch.tensor([1.0, 0, 0]), 0.1)
    assert torch.allclose(scaled, 0.9 * F.cross_entropy(z, y, reduction="none"), atol=1e-6)


# -- exchange ----------------------------------------------------------------------------------------
Z_W = [[3.0, 0, 0], [0, 0, 2], [0, 1, 0], [1, 0, 0]]
Z_THETA = [[1.0, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 3]]
CROSS_LABELS = [0, 1, 1, 0]


def test_each_model_is_trained_on_what_the_other_one_keeps():
    model = pair(Z_W, Z_THETA)
    method = FedFixer(confidence=0.5, distance=0.0)
    loss, state = loss_of(method, model, model, CROSS_LABELS, t=9)  # T_w = 3, β full from round 4
    assert state["kept"].T.tolist() == [[True, False, True, True], [True, True, False, False]]
    loss.mean().backward()
    assert loss.mean().item() == pytest.approx(0.977413 + 1.167234, abs=1e-5)
    z_w, z_theta = (net.z.grad.abs().sum(1) > 0 for net in model.children())
    assert z_w.tolist() == [True, True, False, False]
    assert z_theta.tolist() == [True, False, True, True]
    y, (k_w, k_theta) = torch.tensor(CROSS_LABELS), state["kept"].T
    l_theta = mean_of_kept(confident_loss(torch.tensor(Z_THETA), y, UNIFORM, 0.5), k_w).mean()
    l_w = mean_of_kept(F.cross_entropy(torch.tensor(Z_W), y, reduction="none"), k_theta).mean()
    assert (l_theta.item(), l_w.item()) == pytest.approx((0.977413, 1.167234), abs=1e-6)


def test_the_global_model_has_no_regulariser_unless_asked():
    model, y, kept = pair(Z_W, Z_THETA), torch.tensor(CROSS_LABELS), torch.tensor([True, True, False, False])

    def total(cr_on_global):
        method = FedFixer(confidence=0.5, distance=0.0, cr_on_global=cr_on_global)
        return loss_of(method, model, model, CROSS_LABELS, t=9)[0].mean().item()

    def l_w(beta):
        return mean_of_kept(confident_loss(torch.tensor(Z_W), y, UNIFORM, beta), kept).mean().item()

    assert total(True) - total(False) == pytest.approx(l_w(0.5) - l_w(0.0), abs=1e-5)


def test_the_distance_is_to_the_received_model_and_counts_once():
    model, received = pair(Z_W, Z_THETA), pair([[0.0, 0, 0]] * 4, [[7.0, 7, 7]] * 4)

    def total(distance):
        method = FedFixer(distance=distance)
        return loss_of(method, model, received, CROSS_LABELS, t=9)[0].mean().item()

    assert total(2.0) - total(0.0) == pytest.approx(2.0 * 0.5 * (1 + 4 + 1 + 9), rel=1e-5)


def test_a_model_for_which_nothing_is_kept_gets_no_gradient_not_even_of_the_distance():
    # The global model rejects both samples, so θ has nothing; θ keeps both, so w learns from both.
    model = pair([[0.0, 5, 0], [0, 5, 0]], [[5.0, 0, 0], [5, 0, 0]])
    received = pair([[0.0] * 3] * 2, [[0.0] * 3] * 2)
    loss, state = loss_of(FedFixer(), model, received, [0, 0], t=9)
    assert state["kept"].tolist() == [[False, True], [False, True]]
    assert torch.isfinite(loss).all()
    loss.mean().backward()
    assert model["personal"].z.grad.abs().max() == 0
    assert model["shared"].z.grad.abs().max() > 0


def test_a_model_for_which_nothing_is_kept_takes_no_step():
    class Nothing(FedFixer):
        """Keeps nothing."""

        name = "nothing"

        def keep(self, logits, y, t, terms):
            return torch.zeros_like(y, dtype=torch.bool)

    engine = toy_engine(Nothing())
    before = network_weights(engine.executor.model["shared"])["head.weight"].clone()
    after = engine.federation.train([0])[0].weights
    assert torch.equal(after["shared.head.weight"], before)
    assert torch.equal(engine.federation.states[0]["personal"]["head.weight"], before)


# -- state and communication ---------------------------------------------------------------------------
class Watched(FedFixer):
    """Notes both models as a round starts on a client, and how many samples of its first batch they keep."""

    name = "watched"

    def on_receive(self, model, client):
        super().on_receive(model, client)
        client.state["start"] = [copy_weights(network_weights(net)) for net in model.children()]
        client.state["first"] = None

    def loss(self, model, batch, client):
        loss = super().loss(model, batch, client)
        if client.state["first"] is None:
            client.state["first"] = client.state["kept"][batch.index].clone()
        return loss


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def visit(engine, t, client=0):
    engine.server.round = t
    engine.federation.begin_round()
    update = engine.federation.train([client])[0]
    return update, engine.federation.states[client]


def test_the_personal_model_waits_on_its_client_between_visits():
    engine = toy_engine(Watched())
    update, state = visit(engine, 0)
    received = part(engine.server.weights, "shared")
    w, theta = state["start"]
    assert equal(w, received)
    assert equal(theta, received)  # first visit: a copy of w
    after_first = copy_weights(state["personal"])
    engine.server.weights = update.weights
    engine.server.weights["shared.head.bias"] += 1.0
    _, state = visit(engine, 3)
    w, theta = state["start"]
    assert equal(theta, after_first)
    assert equal(w, part(engine.server.weights, "shared"))
    assert not equal(state["personal"], after_first)


def test_the_upload_holds_one_model():
    update, _ = visit(toy_engine(FedFixer()), 0)
    assert set(update.weights) == {f"shared.{name}" for name in toy_engine(FedAvg()).server.weights}
    assert not update.message


def test_a_personal_model_that_is_made_anew_selects_for_itself():
    class Forgetful(Watched):
        """Starts θ_k from w at every visit."""

        name = "forgetful"

        def on_receive(self, model, client):
            shared, personal = model.children()
            personal.load_state_dict(shared.state_dict())
            super().on_receive(model, client)

    def first_choices(method):
        engine = toy_engine(method, toy_scenario("sym-1.0:0.3-0.5"), fraction=1.0, rounds=6)
        run_rounds(engine, 5)
        return [visit(engine, 5, k)[1]["first"] for k in range(6)]

    assert all(torch.equal(kept[:, 0], kept[:, 1]) for kept in first_choices(Forgetful()))
    assert not all(torch.equal(kept[:, 0], kept[:, 1]) for kept in first_choices(Watched()))


@pytest.mark.parametrize("options", [{"confidence": 0.0, "distance": 0.0}, {}], ids=["bare", "whole"])
def test_where_everything_is_kept_the_global_model_is_that_of_fedavg_whatever_theta_is(options):
    engine, alone = toy_engine(FedFixer(**options)), toy_engine(FedAvg())
    for t in (0, 1):  # the warm-up keeps everything
        for e in (engine, alone):
            visit(e, t)
    trained, expected = visit(engine, 2)[0].weights, visit(alone, 2)[0].weights
    trained = part(trained, "shared")
    assert all(torch.allclose(trained[name], expected[name], atol=1e-6) for name in expected)


def test_a_strong_distance_keeps_theta_near_the_received_model():
    def gap(distance):
        engine = toy_engine(FedFixer(distance=distance))
        _, state = visit(engine, 0)
        received = part(engine.server.weights, "shared")
        return (state["personal"]["head.weight"] - received["head.weight"]).norm().item()

    assert gap(5.0) < 0.6 * gap(0.0)


def test_it_costs_one_model_each_way_and_two_passes():
    engine, model = toy_engine(FedFixer()), count_bytes(toy_engine(FedAvg()).server.weights)
    for row in run_rounds(engine):
        clients = len(row["clients"])
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["bytes_down"] == clients * model
        assert row["bytes_up"] == clients * (model + 8)  # and n_k
        assert row["forward"] == row["backward"] == 2 * TOY_TRAINING.epochs * samples


def test_only_the_global_model_is_evaluated():
    model = pair([[1.0, 2, 3]], [[9.0, 0, 0]])
    assert FedFixer().predict(model, torch.zeros(1)).tolist() == [[1.0, 2.0, 3.0]]


# -- waits and beliefs -------------------------------------------------------------------------------
@pytest.mark.parametrize("filter", ["sieve", "small_loss"])
def test_no_step_waits_for_the_device(filter):
    def make_engine():
        engine = toy_engine(FedFixer(filter=filter, cr_on_global=True))
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)


def test_what_both_keep_is_believed_clean():
    kept = torch.tensor([[True, True], [True, False], [False, False], [True, True]])
    server = Server(terms_of(), 1, {}, ())
    beliefs = FedFixer().beliefs(server, 0, {"kept": kept, "judged": True})
    assert beliefs.clean.tolist() == [True, False, False, True]
    assert beliefs.numbers == {"kept_by_global": 0.75, "kept_by_personal": 0.5}
    assert FedFixer().beliefs(server, 0, {"kept": kept, "judged": False}).clean is None


def test_the_warm_up_judges_no_label():
    engine = toy_engine(FedFixer(), rounds=4, fraction=1.0)
    for judged in (False, False, False, True):
        engine.run_round()
        assert engine.federation.states[0]["judged"] is judged


def test_the_sieve_finds_wrong_labels_in_the_toy_world():
    assert rightly_judged(FedFixer(), rounds=10) > 0.75
