"""FedFixer against the closed-form checks of its specification."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedfixer import FedFixer, tied_step
from torch import nn
from waits import assert_no_step_waits

from flnl_bench.api import Server, Terms, Update, network_weights
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.engine.sgd import SGD
from flnl_bench.numerics import mean_class_loss
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine, toy_scenario

RELEASED = FedFixer.variants["released"]
SIEVED, FIRST = 1000, 0  # a round after the warm-up with the full β, and the first one, where β is 0


def terms_of(rounds=500, epochs=5, lr=0.01, classes=3):
    return Terms(rounds, 6, 0.5, epochs, 16, classes, 0.4, True, lr)


def doubles(rows):
    return torch.tensor(rows, dtype=torch.float64)


class Linear(nn.Module):
    """z = W x without bias, in float64."""

    def __init__(self, rows):
        super().__init__()
        self.w = nn.Parameter(doubles(rows))

    def forward(self, x):
        return x @ self.w.T


class Client:
    """A client whose model is linear; `step` is what the engine does with a batch."""

    def __init__(self, method, model, size, lr=0.01, t=FIRST, theta=None, momentum=0.0, decay=0.0):
        self.method, self.model = method, model
        self.client = SimpleNamespace(
            terms=terms_of(lr=lr),
            round=t,
            epochs=5,
            size=size,
            y=torch.zeros(size),
            state={},
            scratch={},
            held={},
        )
        method.on_receive(model, self.client)
        if theta is not None:
            self.theta.load_state_dict(theta.state_dict())
        self.optimiser = SGD(model.named_parameters(), lr, momentum, decay)

    @property
    def theta(self):
        return self.client.scratch["theta"]

    def pulled(self):
        """The first weight of w after the pull alone."""
        weight, scratch = next(self.model.parameters()), self.client.scratch
        return weight.detach() + scratch["strength"] * scratch["pull"][0]

    def step(self, x, y):
        """Train on a batch; return the pulled w, before its own step."""
        epoch = self.client.round * self.client.epochs
        beta = self.method.beta_of(epoch, self.client.terms)
        batch = SimpleNamespace(x=x, y=torch.tensor(y), index=torch.arange(len(y)), note={"beta": beta})
        self.optimiser.zero_grad()
        self.client.held.clear()
        self.method.loss(self.model, batch, self.client).mean().backward()
        pulled = self.pulled()
        self.optimiser.step(self.client.held)
        self.method.on_step(self.model, self.client)
        return pulled


def close(values):
    return pytest.approx(values, abs=1.5e-9)


def flat(tensor):
    return tensor.detach().flatten().tolist()


# -- 1. schedule -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("epochs", "rounds", "expected"),
    [
        (5, 500, {9: 0, 10: 0, 11: 0.040816, 34: 0.979592, 55: 1.836735, 59: 2, 60: 2}),
        (10, 500, {20: 0, 21: 0.020202, 69: 0.989899, 110: 1.818182, 119: 2}),
        (2, 30, {0: 0, 1: 0, 2: 0, 3: 0.181818, 13: 2}),
    ],
)
def test_beta_grows_for_t_rounds_counted_in_local_epochs(epochs, rounds, expected):
    terms = terms_of(rounds, epochs)
    betas = [FedFixer().beta_of(epoch, terms) for epoch in expected]
    assert betas == pytest.approx(list(expected.values()), abs=1e-6)


def test_the_rate_falls_with_beta():
    rates = [1 / (1 + FedFixer().beta_of(e, terms_of())) for e in (10, 34, 55, 60)]
    assert rates == pytest.approx([1, 0.505155, 0.352518, 0.333333], abs=1e-6)


def test_a_ramp_of_one_epoch_is_a_zero():
    method = FedFixer(begin=1)
    assert [method.beta_of(e, terms_of(epochs=1)) for e in (0, 1, 2)] == [0, 2, 2]


@pytest.mark.parametrize(("rounds", "t"), [(500, 10), (175, 10), (50, 10), (30, 6), (10, 3), (1, 3)])
def test_the_sieve_begins_after_round_t(rounds, t):
    assert FedFixer().warmup(terms_of(rounds)) == t + 1
    assert FedFixer(**RELEASED).warmup(terms_of(rounds)) == 11


def test_the_warm_up_keeps_even_adversarial_logits():
    adversarial, y = doubles([[-9.0, 5, 5], [5, -9, 5]]), torch.tensor([0, 1])

    def kept(t):
        return FedFixer().judge(adversarial, y, 2.0, SimpleNamespace(terms=terms_of(), round=t))[1].tolist()

    assert kept(0) == kept(10) == [True, True]
    assert kept(11) == [False, False]


def test_every_step_has_the_beta_of_its_epoch():
    seen = []

    class Seen(FedFixer):
        """Notes β of every step."""

        name = "seen"

        def plan(self, model, client):
            for portion in super().plan(model, client):
                seen.extend((step.note["beta"], len(step.rows)) for step in portion)
                yield portion

    engine = toy_engine(Seen())
    visit(engine, 1)
    betas = [Seen().beta_of(e, engine.terms) for e in (2, 3)]
    assert betas[0] != betas[1]
    assert seen == [(beta, size) for beta in betas for size in (16, 14)]


# -- 2. to 4. losses and sieve -------------------------------------------------------------------------
LOGITS = [[2.0, 0, 0], [0, 0, 0], [0, 3, 0], [1, 1, 0]]
LABELS = [0, 1, 0, 1]


def judged(z, y, beta=2.0, **options):
    client = SimpleNamespace(terms=terms_of(), round=SIEVED)
    return FedFixer(**options).judge(z, torch.tensor(y), beta, client)


def test_the_confidence_loss_subtracts_the_mean_loss_of_all_labels():
    z = doubles(LOGITS).requires_grad_()
    assert mean_class_loss(z).tolist() == pytest.approx([1.572878, 1.098612, 2.094923, 1.195328], abs=1e-6)
    losses = judged(z, LABELS)[0]
    assert losses.tolist() == pytest.approx([-2.906211, -1.098612, -1.094923, -1.528661], abs=1e-6)
    (slope,) = torch.autograd.grad(losses.sum(), z)
    assert slope[0].tolist() == pytest.approx([-1.120319, 0.560160, 0.560160], abs=1e-6)
    assert slope[2].tolist() == pytest.approx([-0.378612, -0.242776, 0.621388], abs=1e-6)
    half = [-0.546894, 0.549306, 2.047462, 0.264331]
    assert judged(z, LABELS, 0.5)[0].tolist() == pytest.approx(half, abs=1e-6)
    assert torch.equal(judged(z, LABELS, 0.0)[0], F.cross_entropy(z, torch.tensor(LABELS), reduction="none"))


def test_equal_logits_are_kept_but_not_as_released():
    z = doubles(LOGITS)
    assert judged(z, LABELS)[1].tolist() == [True, True, False, True]
    assert judged(z, LABELS, **RELEASED)[1].tolist() == [True, False, False, True]


@pytest.mark.parametrize(("high", "second", "kept"), [(40, 20, False), (30, 14, True), (12, 6, True)])
def test_the_bound_of_the_mean_loss_is_part_of_the_sieve(high, second, kept):
    z = doubles([[high, second, *[0] * 8]])
    assert judged(z, [1])[1].item() is kept
    given = F.cross_entropy(z, torch.tensor([1])).item()
    expected = {40: (20.0, 16.559872), 30: (16.0, 16.328024), 12: (6.002525, 10.201220)}[high]
    assert (given, mean_class_loss(z).item()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("classes", "beta", "bottom"), [(10, 2.0, -33.157225), (100, 2.0, -36.472948), (14, 1.0, -17.104918)]
)
def test_the_confidence_loss_has_a_floor(classes, beta, bottom):
    z = torch.zeros(1, classes, dtype=torch.float64)
    z[0, 4] = 1e4
    assert judged(z, [4], beta)[0].item() == pytest.approx(bottom, abs=1e-6)


# -- 5. to 7. one batch --------------------------------------------------------------------------------
START = [[0.5, -0.2], [0.1, 0.4], [-0.3, 0.2]]
X, Y = doubles([[1.0, 0], [0, 1], [1, 1], [2, -1]]), [0, 1, 2, 0]
ONE_BATCH = {
    0.01: {
        "first": [0.501832901, -0.202132992, 0.097260232, 0.400830214, -0.299096133, 0.201298777],
        "theta": [0.506712654, -0.207865537, 0.089928619, 0.403056109, -0.296652399, 0.204794594],
        "pulled": [0.501006898, -0.201179831, 0.098489293, 0.400458416, -0.299497860, 0.200719189],
        "w": [0.502844799, -0.203314822, 0.095750525, 0.401292631, -0.298596992, 0.202019966],
    },
    0.1: {
        "first": [0.518329005, -0.221329915, 0.072602321, 0.408302144, -0.290961326, 0.212987771],
        "theta": [0.512375352, -0.214532329, 0.081412564, 0.405641953, -0.293808540, 0.208862877],
        "pulled": [0.518563029, -0.221798493, 0.072118845, 0.408462929, -0.290712810, 0.213294316],
        "w": [0.536942034, -0.243148408, 0.044731166, 0.416805073, -0.281704136, 0.226302087],
    },
}


@pytest.mark.parametrize("options", [{}, RELEASED], ids=["default", "released"])
@pytest.mark.parametrize("lr", ONE_BATCH)
def test_one_batch_of_the_warm_up(lr, options):
    expected = ONE_BATCH[lr]
    once = Client(FedFixer(**{**options, "personal_steps": 1}), Linear(START), 4, lr)
    once.step(X, Y)
    assert flat(once.theta.w) == close(expected["first"])
    client = Client(FedFixer(**options), Linear(START), 4, lr)
    assert flat(client.step(X, Y)) == close(expected["pulled"])
    assert flat(client.theta.w) == close(expected["theta"])
    assert flat(client.model.w) == close(expected["w"])


def test_momentum_and_decay_of_the_protocol_are_for_w_alone_and_not_as_released():
    def after(options, **protocol):
        client = Client(FedFixer(**options), Linear(START), 4, **protocol)
        client.step(X, Y)
        client.step(X, Y)
        return client

    plain, protocol = after({}), after({}, momentum=0.5, decay=0.1)
    assert not torch.allclose(plain.model.w, protocol.model.w)
    released = after(RELEASED, momentum=0.5, decay=0.1)
    assert torch.allclose(released.model.w, plain.model.w, rtol=0, atol=1e-15)
    assert torch.allclose(released.theta.w, plain.theta.w, rtol=0, atol=1e-15)


def test_the_pull_has_the_whole_rate_where_the_steps_have_half_of_it():
    client = Client(FedFixer(personal_lr=0.5), Linear(START), 4, lr=0.1)
    client.step(X, Y)
    expected = [0.526767375, -0.231591673, 0.059710187, 0.412268456, -0.286507531, 0.219283258]
    assert flat(client.model.w) == close(expected)


def test_theta_is_carried_over_and_its_anchor_moves():
    client = Client(FedFixer(), Linear(START), 4)
    client.step(X[:2], Y[:2])
    client.step(X[2:], Y[2:])
    theta = [0.510054707, -0.214259575, 0.081930981, 0.402571658, -0.292002678, 0.211665264]
    w = [0.505994355, -0.206767158, 0.091327796, 0.402963561, -0.297326118, 0.203798307]
    assert flat(client.theta.w) == close(theta)
    assert flat(client.model.w) == close(w)


def test_one_personal_step_is_a_longer_step_of_fedavg():
    client = Client(FedFixer(personal_steps=1, personal_decay=0.0), Linear(START), 4)
    client.step(X, Y)
    w = [0.502113586, -0.202455240, 0.096850417, 0.400959347, -0.298964002, 0.201495894]
    assert flat(client.model.w) == close(w)


def test_without_tie_and_decay_both_models_are_that_of_fedavg():
    bare = FedFixer(personal_steps=1, personal_decay=0.0, distance=0.0)
    client, fedavg = Client(bare, Linear(START), 4), Linear(START)
    optimiser = SGD(fedavg.named_parameters(), 0.01)
    for _ in range(3):
        client.step(X, Y)
        optimiser.zero_grad()
        F.cross_entropy(fedavg(X), torch.tensor(Y), reduction="none").mean().backward()
        optimiser.step()
        assert torch.equal(client.model.w, fedavg.w)
        assert torch.allclose(client.theta.w, fedavg.w, rtol=0, atol=1e-15)


def test_without_tie_the_global_model_is_fedavg_s_to_the_bit():
    engine, alone = toy_engine(FedFixer(distance=0.0, beta=0.0)), toy_engine(FedAvg())
    for t in (0, 1):  # everything is kept
        trained, expected = visit(engine, t).weights, visit(alone, t).weights
        assert all(torch.equal(trained[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("lr", "beta", "theta", "pull"),
    [
        (0.01, 0, -0.037085580, -0.005562837),
        (0.01, 2, -0.015081170, -0.000754059),
        (0.1, 0, -0.068747501, -0.103121252),
        (0.1, 2, -0.064579722, -0.032289861),
    ],
)
def test_five_tied_steps_with_a_constant_gradient(lr, beta, theta, pull):
    weights, anchor = [doubles([0.0])], [doubles([0.0])]
    rate = lr / (1 + beta)
    for _ in range(5):
        tied_step(weights, anchor, (doubles([1.0]),), rate, 15.0, 0.001)
    assert weights[0].item() == close(theta)
    assert 15 * rate * weights[0].item() == close(pull)


# -- 8. and 9. the sieve in a batch ----------------------------------------------------------------------
W_8 = [[0.0, 0.5], [-0.1, -0.1], [0.5, 0.5]]
THETA_8 = [[0.1, 0.1], [-0.3, -0.2], [0.7, 0.5]]
X_8 = doubles([[-1.0, 1], [1, -2], [1, -1], [0, 1], [-2, 2], [-2, 2]])
Y_8 = [0, 2, 0, 1, 1, 0]
NEW_W = {
    "step": [-0.077535637, 0.578275397, -0.068317085, -0.134859867, 0.547401785, 0.448745513],
    "batch": [-0.070081576, 0.565379493, -0.078931778, -0.125747702, 0.550562416, 0.452529252],
}


def rows(mask):
    return mask.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("selection", NEW_W)
def test_each_model_is_trained_on_what_the_other_one_keeps(selection):
    choices = []

    class Watched(FedFixer):
        """Notes every choice: first that of w, then K of θ."""

        name = "watched"

        def judge(self, logits, y, beta, client):
            losses, kept = super().judge(logits, y, beta, client)
            choices.append(rows(kept))
            return losses, kept

    client = Client(Watched(selection=selection), Linear(W_8), 6, lr=0.1, t=SIEVED, theta=Linear(THETA_8))
    pulled = client.step(X_8, Y_8)
    assert choices == [[0, 5], [0, 4, 5], [0, 5], [0, 1, 5], [0, 1, 5], [0, 1, 5]]
    theta = [-0.086318777, 0.576914612, -0.062563520, -0.146795440, 0.551980424, 0.454202914]
    assert flat(client.theta.w) == close(theta)
    expected = [-0.043159389, 0.538457306, -0.081281760, -0.123397720, 0.525990212, 0.477101457]
    assert flat(pulled) == close(expected)
    assert flat(client.model.w) == close(NEW_W[selection])
    assert client.client.scratch["count"].item() == 3
    by_w, by_theta = client.client.state["kept"].T
    assert rows(by_w) == [0, 5]
    assert rows(by_theta) == ([0, 1, 5] if selection == "step" else [0, 4, 5])


def test_images_that_the_other_model_drops_give_no_gradient():
    x = X_8.clone().requires_grad_()
    client = Client(FedFixer(), Linear(W_8), 6, lr=0.1, t=SIEVED, theta=Linear(THETA_8))
    client.step(x, Y_8)
    assert rows(x.grad.abs().sum(1)) == [0, 1, 5]  # of the loss of w alone: θ's gradients are its own


def test_where_nothing_is_kept_only_the_decay_moves_theta():
    zeros = [[3.0, 0], [0, 0], [0, 0]]
    client = Client(FedFixer(), Linear(zeros), 2, t=SIEVED)
    client.step(doubles([[2.0, 0], [3, 0]]), [1, 2])
    assert flat(client.theta.w) == close([2.999954756, 0, 0, 0, 0, 0])
    assert flat(client.model.w) == close([2.999997738, 0, 0, 0, 0, 0])
    assert client.client.scratch["count"].item() == 0


# -- 10. to 12. messages, statistics, state ----------------------------------------------------------------
def visit(engine, t, client=0):
    engine.server.round = t
    engine.federation.begin_round()
    return engine.federation.train([client])[0]


def test_the_mean_of_the_epochs_is_sent():
    client = SimpleNamespace(scratch={"count": torch.tensor(50 + 40 + 45)}, epochs=3)
    assert FedFixer().upload(None, client) == {"kept": 45.0}
    assert visit(toy_engine(FedFixer()), 0).message == {"kept": 30.0}  # all of the client's images


def test_clients_count_by_what_they_kept():
    server = Server(terms_of(), 1, {"w": doubles([7.0])}, ())

    def mean(*kept):
        sent = zip((1.0, 3.0, 100.0), kept, strict=True)
        updates = [Update(k, 99, {"w": doubles([w])}, {"kept": n}) for k, (w, n) in enumerate(sent)]
        return FedFixer().aggregate(server, updates)["w"].item()

    assert mean(45.0, 30.0, 0.0) == pytest.approx(1.8)
    assert mean(0.0, 0.0, 0.0) == 7.0
    diverged = Update(0, 9, {"w": doubles([float("nan")])}, {"kept": 45.0})
    assert FedFixer().aggregate(server, [diverged])["w"].item() == 7.0


class Normed(nn.Module):
    """A BatchNorm before a linear layer."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(1), nn.Linear(1, 3)

    def forward(self, x):
        return self.head(self.norm(x))


@pytest.mark.parametrize(("options", "expected"), [({}, 0.2), (RELEASED, 0.819020)])
def test_batch_norm_statistics_move_once_a_batch_or_as_released_five_times(options, expected):
    model = Normed().train()
    client = Client(FedFixer(**options), model, 2)
    client.step(torch.tensor([[1.0], [3.0]]), [0, 1])
    assert model.norm.running_mean.item() == pytest.approx(expected, abs=1e-6)
    assert client.theta.norm.running_mean.item() == pytest.approx(0.819020, abs=1e-6)


class Noted(FedFixer):
    """Notes both models as a round starts on a client."""

    name = "noted"

    def on_receive(self, model, client):
        super().on_receive(model, client)
        nets = client.received, model, client.scratch["theta"]
        starts.append([{n: t.clone() for n, t in network_weights(net).items()} for net in nets])


starts = []


@pytest.mark.parametrize("personal", ["visit", "kept"])
def test_theta_starts_as_the_received_model_unless_it_is_kept(personal):
    engine = toy_engine(Noted(personal=personal))
    starts.clear()
    update = visit(engine, 0)
    assert set(update.weights) == set(toy_engine(FedAvg()).server.weights)
    kept = {n: t.clone() for n, t in engine.federation.states[0].get("personal", {}).items()}
    engine.server.weights = update.weights
    visit(engine, 3)
    for number, (received, w, theta) in enumerate(starts):
        expected = kept if number and personal == "kept" else received
        assert all(torch.equal(received[name], w[name]) for name in received)
        assert all(torch.equal(theta[name], expected[name]) for name in expected)
    assert set(engine.federation.states[0]) - {"personal"} == {"kept", "judged"}
    assert bool(kept) is (personal == "kept")


# -- cost, waits, beliefs ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "forward"), [({}, 6), (RELEASED, 10), ({"personal_steps": 1}, 2)])
def test_it_costs_one_model_each_way_a_number_and_six_passes(options, forward):
    engine, model = toy_engine(FedFixer(**options)), count_bytes(toy_engine(FedAvg()).server.weights)
    steps = options.get("personal_steps", 5)
    for row in run_rounds(engine, 2):
        clients = len(row["clients"])
        images = TOY_TRAINING.epochs * sum(engine.server.sizes[k] for k in row["clients"])
        assert row["bytes_down"] == clients * model
        assert row["bytes_up"] == clients * (model + 8 + 8)  # n_k and n̄_k
        assert (row["forward"], row["backward"]) == (forward * images, (steps + 1) * images)


@pytest.mark.parametrize("options", [{}, {**RELEASED, "begin": 1, "selection": "batch"}])
def test_no_step_waits_for_the_device(options):
    def make_engine():
        engine = toy_engine(FedFixer(**options))
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)


def test_what_theta_keeps_is_believed_clean():
    kept = torch.tensor([[True, True], [False, True], [False, False], [True, True]])
    server = Server(terms_of(), 1, {}, ())
    beliefs = FedFixer().beliefs(server, 0, {"kept": kept, "judged": True})
    assert beliefs.clean.tolist() == [True, True, False, True]
    assert beliefs.numbers == {"kept_by_global": 0.5, "kept_by_personal": 0.75}
    assert FedFixer().beliefs(server, 0, {"kept": kept, "judged": False}).clean is None


def test_the_sieve_finds_wrong_labels_in_the_toy_world():
    scenario = toy_scenario("sym-1.0:0.3-0.5")
    # Ten rounds of learning: with β above 1, models that have learned little confirm their own mistakes.
    engine = toy_engine(FedFixer(begin=10), scenario, rounds=12, fraction=1.0)
    run_rounds(engine)
    right = torch.from_numpy(scenario.given == scenario.true)
    states = engine.federation.states
    agree = [(s["kept"][:, 1] == right[scenario.clients[k]]).float().mean() for k, s in states.items()]
    assert torch.stack(agree).mean() > 0.75
