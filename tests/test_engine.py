"""The engine on models so small that their weights can be computed by hand."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedgr import FedGR
from flnl_methods.fedgr_released import FedGRReleased
from flnl_methods.fedprox import FedProx
from torch import nn
from waits import Counter, assert_no_step_waits

from flnl_bench import Client, Method, Step, copy_weights
from flnl_bench.engine.devices import survives_bfloat16
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import average
from flnl_bench.testing import CPU_ONLY, TOY_TRAINING, run_rounds, toy_dataset, toy_engine, toy_scenario


class Scalar(nn.Module):
    """One weight and one buffer, both counted and averaged."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        self.seen += self.training
        return torch.zeros(len(x), 3) + self.w


class Pull(Method):
    """½(w − y)²: the weight moves to the mean of the labels."""

    name = "pull"

    def build(self, new_net):
        return Scalar()

    def loss(self, model, batch, client):
        model(batch.x)
        return 0.5 * (model.w - batch.y) ** 2


def world(sizes, labels):
    """Clients of given sizes, client k with all labels equal to labels[k]."""
    base = toy_scenario("clean")
    edges = np.cumsum([0, *sizes])
    clients = tuple(np.arange(a, b) for a, b in itertools.pairwise(edges))
    given = base.given.copy()
    for rows, label in zip(clients, labels, strict=True):
        given[rows] = label
    return dataclasses.replace(base, clients=clients, given=given)


def test_a_round_ends_with_the_weight_computed_by_hand():
    # One full batch each: w_k = 0 − lr·(0 − y_k) = 0.1·y_k; the mean weighted by 10 and 30 is 0.15.
    engine = toy_engine(Pull(), world((10, 30), (0, 2)), epochs=1, batch_size=64, fraction=1.0, momentum=0.0)
    engine.run_round()
    assert engine.server.weights["w"].item() == pytest.approx(0.1 * 2 * 30 / 40)
    assert engine.server.weights["seen"].item() == pytest.approx(1.0)


class Always(nn.Module):
    """Says one class to everything."""

    def __init__(self, label):
        super().__init__()
        self.logits = nn.Parameter(torch.eye(3)[label])

    def forward(self, x):
        return self.logits.expand(len(x), -1)


class Quarrel(Method):
    """Three networks of different opinion, of which the first decides and two are recorded alone."""

    name = "quarrel"
    members = ("zero", "two")

    def build(self, new_net):
        return nn.ModuleDict({"one": Always(1), "zero": Always(0), "two": Always(2)})

    def predict(self, model, x):
        return model["one"](x)

    def loss(self, model, batch, client):
        return 0.0 * model["one"](batch.x).sum(1)


def test_the_accuracy_of_every_member_is_recorded_beside_that_of_the_model():
    engine = toy_engine(Quarrel(), weight_decay=0.0)
    report = engine.run_round()
    shares = 100 * np.bincount(engine.test_labels, minlength=3) / len(engine.test_labels)
    assert report.accuracy == pytest.approx(shares[1])
    assert report.method == pytest.approx({"accuracy_zero": shares[0], "accuracy_two": shares[2]})


class Lopsided(Pull):
    """A loss of 2^53 on clients whose labels are 0, of 1 where they are 1, and of −2^53 where they are 2."""

    name = "lopsided"

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * 0 + torch.tensor([2.0**53, 1.0, -(2.0**53)])[batch.y]


@pytest.mark.parametrize("backwards", [False, True])
def test_the_mean_training_loss_does_not_depend_on_the_order_of_the_clients(backwards):
    # As floats 2^53 + 1 is 2^53, so that 2^53 + 1 − 2^53 is 0, but −2^53 + 1 + 2^53 is 1.
    engine = toy_engine(Lopsided(), world((1, 1, 1), (0, 1, 2)), epochs=1, fraction=1.0)
    engine.federation.order = lambda ids: sorted(ids, reverse=backwards)
    assert engine.run_round().train_loss == np.float32(1 / 3)


def test_the_recorded_loss_is_that_before_the_step_whatever_a_hook_does_with_it():
    class Reused(Pull):
        def loss(self, model, batch, client):
            client.scratch["losses"] = super().loss(model, batch, client)
            return client.scratch["losses"]

        def on_step(self, model, client):
            client.scratch["losses"].detach().zero_()

    assert toy_engine(Reused()).run_round().train_loss == toy_engine(Pull()).run_round().train_loss > 0


def test_a_network_is_held_only_in_the_steps_whose_loss_holds_it():
    class Holding(Method):
        """Two weights that move to the mean of the labels; the first one is held in the first step."""

        name = "holding"

        def build(self, new_net):
            return nn.ModuleDict({"first": Scalar(), "second": Scalar()})

        def predict(self, model, x):
            return model["first"](x)

        def loss(self, model, batch, client):
            if client.scratch.setdefault("steps", 0) == 0:
                client.held["first"] = torch.tensor(True)
            client.scratch["steps"] += 1
            return sum(0.5 * (part.w - batch.y) ** 2 for part in model.values())

    settings = {"batch_size": 64, "fraction": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    engine = toy_engine(Holding(), world((10,), (2,)), epochs=3, **settings)
    engine.run_round()
    # w ← w + lr·(2 − w) from 0, in two and in three steps: 0.2, 0.38, 0.542.
    assert engine.server.weights["first.w"].item() == pytest.approx(0.38)
    assert engine.server.weights["second.w"].item() == pytest.approx(0.542)


def test_momentum_and_weight_decay_are_those_of_sgd_and_start_anew_each_round():
    settings = {"epochs": 2, "batch_size": 64, "fraction": 1.0, "momentum": 0.5, "weight_decay": 0.1}
    engine = toy_engine(Pull(), world((10,), (2,)), **settings)
    w = 0.0
    for _ in range(2):
        engine.run_round()
        buffer = 0.0
        for _ in range(2):
            buffer = 0.5 * buffer + (w - 2) + 0.1 * w
            w -= 0.1 * buffer
    assert engine.server.weights["w"].item() == pytest.approx(w, rel=1e-6)


def test_the_proximal_term_pulls_towards_the_received_weights():
    model, client = Scalar(), type("C", (), {"received": Scalar(), "scratch": {}})()
    model.w.data.fill_(3.0)
    batch = type("B", (), {"x": torch.zeros(2, 1), "y": torch.tensor([0, 1])})()
    method = FedProx(mu=3.0)
    method.on_receive(model, client)
    method.loss(model, batch, client).mean().backward()
    method.on_gradient(model, batch, client)
    assert model.w.grad.item() == pytest.approx(3.0 * 3.0)


def test_averages_are_weighted_and_include_buffers():
    models = [
        {"w": torch.tensor([1.0]), "mean": torch.tensor([2.0])},
        {"w": torch.tensor([5.0]), "mean": torch.tensor([6.0])},
    ]
    mean = average(models, [100, 300])
    assert (mean["w"].item(), mean["mean"].item()) == (4.0, 5.0)


# -- test images -------------------------------------------------------------------------------------
EIGHT = [1, 5, 6, 9, 10, 41, 47, 52]  # of the stream "test subset" of seed 0


def engine_tested_on(count, seed=1):
    training = dataclasses.replace(TOY_TRAINING, test_samples=count)
    return Engine(FedAvg(), toy_dataset(), toy_scenario(), training, seed, CPU_ONLY)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_seed_is_tested_on_the_same_random_images_in_their_order(seed):
    assert engine_tested_on(8, seed).test_rows.tolist() == EIGHT


@pytest.mark.parametrize("count", [None, 60, 61])
def test_all_images_are_tested_on_in_their_order_where_there_are_not_more(count):
    assert engine_tested_on(count).test_rows.tolist() == list(range(60))


def test_accuracy_and_loss_are_those_of_the_subset():
    engine, labels = engine_tested_on(8), torch.from_numpy(toy_dataset().test_y)
    report = engine.run_round()
    logits = engine.executor.logits(engine.server.weights, "test", np.arange(60))
    hits, losses = logits.argmax(1) == labels, nn.functional.cross_entropy(logits, labels, reduction="none")
    assert report.accuracy == pytest.approx(100 * hits[EIGHT].sum().item() / 8)
    assert report.loss == pytest.approx(losses[EIGHT].mean().item())
    assert report.loss != pytest.approx(losses.mean().item())


# -- batches -----------------------------------------------------------------------------------------
def client_with(size, batch_size=16, epochs=1):
    engine = toy_engine(Pull(), world((size,), (0,)), batch_size=batch_size, epochs=epochs)
    seen: list[Client] = []
    engine.federation.visit([0], lambda client: seen.append(client) or {})
    return seen[0]


@pytest.mark.parametrize(
    ("size", "expected"), [(16, [16]), (17, [17]), (18, [16, 2]), (33, [16, 17]), (1, [1]), (40, [16, 16, 8])]
)
def test_short_last_batches_are_kept_but_one_image_joins_the_batch_before(size, expected):
    steps = client_with(size).steps()
    assert [len(step.rows) for step in steps] == expected
    assert sorted(np.concatenate([step.rows for step in steps])) == list(range(size))


def test_every_epoch_has_another_order():
    steps = client_with(16, epochs=2).steps()
    assert not np.array_equal(steps[0].rows, steps[1].rows)


def test_clients_see_the_labels_of_the_scenario():
    # A peer trains its human-label runs on clean labels by mistake: here the labels seen are checked.
    scenario = toy_scenario("sym-1.0")
    seen = {}

    class Spy(FedAvg):
        name = "spy"

        def loss(self, model, batch, client):
            seen.setdefault(len(seen), (batch.index.clone(), batch.y.clone(), client.y))
            return super().loss(model, batch, client)

    engine = toy_engine(Spy(), scenario, rounds=1)
    engine.federation.train([2])
    for index, y, all_labels in seen.values():
        assert torch.equal(all_labels, torch.from_numpy(scenario.given[scenario.clients[2]]))
        assert torch.equal(y, all_labels[index])


def test_a_batch_shows_the_images_of_its_rows():
    class Spy(FedAvg):
        name = "spy-images"

        def on_receive(self, model, client):
            client.state["plain"] = client.map(lambda batch: batch.x)

        def loss(self, model, batch, client):
            assert torch.equal(batch.x, client.state["plain"][batch.index])
            return super().loss(model, batch, client)

    toy_engine(Spy(view="plain")).run_round()


def test_a_loss_may_change_the_images_of_a_batch_in_place_with_a_gradient():
    class Attacked(FedAvg):
        name = "attacked"

        def loss(self, model, batch, client):
            delta = torch.zeros_like(batch.x, requires_grad=True)
            batch.x.add_(delta)
            losses = super().loss(model, batch, client)
            (gradient,) = torch.autograd.grad(losses.sum(), delta, retain_graph=True)
            assert gradient.abs().sum() > 0
            return losses

    assert toy_engine(Attacked()).run_round().train_loss == toy_engine(FedAvg()).run_round().train_loss


def test_map_shows_the_same_augmented_images_at_every_call_of_a_round():
    class Twice(FedAvg):
        name = "twice"

        def on_receive(self, model, client):
            first, second = (client.map(lambda batch: batch.x, views=("weak",)) for _ in range(2))
            assert torch.equal(first, second)
            assert not torch.equal(first, client.map(lambda batch: batch.x))
            beside = client.map(lambda batch: batch.views[1], views=("plain", "weak"))
            assert torch.equal(first, beside)

    toy_engine(Twice()).run_round()


def test_notes_of_a_step_reach_the_loss():
    class Noted(FedAvg):
        name = "noted"

        def plan(self, model, client):
            yield [
                Step(np.array([0, 1, 2]), {"lam": 0.3, "order": torch.tensor([2, 0])}),
                Step(np.array([3, 4])),
                Step(np.array([7, 8]), {"lam": torch.tensor(0.5, requires_grad=True)}),
                Step(np.array([7, 8]), {"lam": torch.ones(1, 2, dtype=torch.bfloat16), "order": None}),
            ]
            yield [Step(np.array([5, 6]), {"order": torch.tensor([1])})]

        def loss(self, model, batch, client):
            client.state.setdefault("notes", []).append([batch.index.tolist(), dict(batch.note)])
            return super().loss(model, batch, client)

    engine = toy_engine(Noted())
    engine.federation.train([0])
    (a, b, single, half, c) = engine.federation.states[0]["notes"]
    assert (a[0], a[1]["lam"], a[1]["order"].tolist()) == ([0, 1, 2], 0.3, [2, 0])
    assert b == [[3, 4], {}]
    assert (single[1]["lam"].shape, single[1]["lam"].item()) == ((), 0.5)
    assert (half[1]["lam"].tolist(), half[1]["order"]) == ([[1, 1]], None)
    assert half[1]["lam"].dtype == torch.bfloat16
    assert c[1]["order"].tolist() == [1]


def test_slabs_do_not_change_the_images(monkeypatch):
    whole = run_rounds(toy_engine(FedAvg(view="strong")))
    monkeypatch.setattr("flnl_bench.engine.batches.SLAB_PIXELS", 64 * 20)
    assert run_rounds(toy_engine(FedAvg(view="strong"))) == whole


def test_a_private_part_trains_on_its_client_and_is_never_sent():
    class Personal(Method):
        name = "personal"
        private = ("own",)

        def build(self, new_net):
            return nn.ModuleDict({"shared": Scalar(), "own": Scalar()})

        def predict(self, model, x):
            return model["shared"](x)

        def client_state(self, client):
            return {"own": {"w": torch.full((1,), 7.0), "seen": torch.zeros(1)}}

        def loss(self, model, batch, client):
            return 0.5 * (model["shared"].w - batch.y) ** 2 + 0.5 * (model["own"].w - 10) ** 2

    engine = toy_engine(
        Personal(), world((10, 30), (0, 2)), epochs=1, batch_size=64, momentum=0.0, weight_decay=0.0
    )
    updates = engine.federation.train([1])
    assert set(updates[0].weights) == {"shared.w", "shared.seen"}
    assert engine.federation.states[1]["own"]["w"].item() == pytest.approx(7.3)
    engine.federation.begin_round()
    engine.federation.train([1])
    assert engine.federation.states[1]["own"]["w"].item() == pytest.approx(7.57)


# -- cost --------------------------------------------------------------------------------------------
def test_fedavg_costs_two_models_and_its_epochs():
    engine = toy_engine(FedAvg())
    row = run_rounds(engine, 1)[0]
    model = count_bytes(engine.server.weights)
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["bytes_down"] == len(row["clients"]) * model
    assert row["bytes_up"] == len(row["clients"]) * (model + 8)  # and n_k
    assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples


def test_a_message_of_unknown_size_is_refused():
    with pytest.raises(TypeError, match="object"):
        count_bytes({"x": object()})


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(),
        FedAvg(view="strong"),
        FedProx(),
        FedGR(warmup_share=0.0),
        FedGR(teacher="online"),
        FedGRReleased(),
        FedGRReleased(release="a"),
    ],
    ids=repr,
)
def test_no_step_waits_for_the_device(method):
    def make_engine():
        engine = toy_engine(method)
        engine.server.round = 3
        return engine

    assert_no_step_waits(make_engine)


def test_the_counter_of_waits_sees_them():
    x = torch.arange(4.0)
    waiting = ("item", "mask", "cpu", "numpy", "tolist", "bool")
    how = (lambda: x.sum().item(), lambda: x[x > 1], lambda: x.cpu(), lambda: x.numpy(), lambda: x.tolist())
    for name, wait in zip(waiting, (*how, lambda: bool(x[0] > 0)), strict=True):
        with Counter() as counter:
            wait()
        assert counter.syncs, name
    with Counter() as counter:
        x[torch.tensor([1, 2])].add(1).sum()
    assert counter.syncs == 0


# -- order and restarts are covered for every method by the conformance kit ---------------------------
def test_two_methods_on_one_seed_start_from_the_same_weights_and_clients():
    a, b = toy_engine(FedAvg()), toy_engine(FedProx())
    assert all(torch.equal(a.server.weights[name], b.server.weights[name]) for name in a.server.weights)
    assert run_rounds(a, 1)[0]["clients"] == run_rounds(b, 1)[0]["clients"]


def test_fedprox_without_its_term_is_fedavg():
    a, b = run_rounds(toy_engine(FedAvg())), run_rounds(toy_engine(FedProx(mu=0.0)))
    assert [row["accuracy"] for row in a] == [row["accuracy"] for row in b]


@pytest.mark.skipif(not survives_bfloat16(), reason="this CPU cannot compute in bfloat16")
def test_bfloat16_networks_learn_as_others_do_and_give_float32():
    method = FedAvg()
    engine = toy_engine(method, precision="bfloat16")
    network = engine.executor.model
    features, logits = network.both(torch.zeros(2, 1, 8, 8))
    assert features.dtype == logits.dtype == torch.float32
    assert engine.executor.global_model(engine.server.weights).autocasts  # as the training does
    half, full = run_rounds(engine), run_rounds(toy_engine(method))
    assert half != full
    losses, expected = ([row["train_loss"] for row in rows] for rows in (half, full))
    assert losses == pytest.approx(expected, rel=0.03)
    assert [row["forward"] for row in half] == [row["forward"] for row in full]


# -- what diverged -----------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_mean_leaves_out_models_that_are_not_finite(value):
    engine = toy_engine(FedAvg())
    good, other, bad = engine.federation.train([0, 1, 2])
    name = next(iter(bad.weights))
    bad.weights[name].view(-1)[0] = value
    kept = engine.method.aggregate(engine.server, [good, other])
    mean = engine.method.aggregate(engine.server, [good, bad, other])
    assert all(torch.equal(mean[name], kept[name]) for name in kept)


def test_where_all_models_diverged_the_global_weights_stay():
    engine = toy_engine(FedAvg(), lr=1e20)
    before = copy_weights(engine.server.weights)
    report = engine.run_round()
    assert not np.isfinite(report.train_loss)
    assert all(torch.equal(engine.server.weights[name], before[name]) for name in before)


def test_steps_from_another_generator_leave_the_order_of_the_training_batches():
    class Looks(FedAvg):
        name = "looks"

        def on_receive(self, model, client):
            steps = client.steps(np.arange(5), epochs=2, rng=client.rng)
            assert sorted(np.concatenate([step.rows for step in steps])) == sorted([*range(5)] * 2)

    assert run_rounds(toy_engine(Looks()), 1) == run_rounds(toy_engine(FedAvg()), 1)


# -- clients that do not answer ------------------------------------------------------------------------
def test_clients_that_drop_out_get_the_model_and_send_nothing():
    full, dropped = toy_engine(FedAvg(), epochs=1), toy_engine(FedAvg(), epochs=1, drop=0.5)
    rows, kept = run_rounds(full), run_rounds(dropped)
    model = count_bytes(full.server.weights)
    assert [row["bytes_down"] for row in kept] == [row["bytes_down"] for row in rows]
    assert [row["bytes_up"] for row in kept] == [len(row["clients"]) * (model + 8) for row in kept]
    assert all({*row["clients"]} <= {*all_["clients"]} for row, all_ in zip(kept, rows, strict=True))
    assert 0 < sum(len(row["clients"]) for row in kept) < 18
    assert [] in [row["clients"] for row in kept]  # a round without an answer keeps the weights


def test_whether_a_client_answers_does_not_depend_on_the_other_clients_or_on_the_call():
    engine = toy_engine(FedAvg(), epochs=1, drop=0.5)

    def answering(ids):
        return [update.client for update in engine.federation.train(ids)]

    together = answering(range(6))
    assert 0 < len(together) < 6
    assert [k for k in range(6) if answering([k])] == together
    assert [*engine.federation.visit(range(6), lambda client: {})] == [*range(6)]
    engine.server.round += 1
    assert answering(range(6)) != together
