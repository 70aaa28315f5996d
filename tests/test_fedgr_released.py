"""FedGR as released: what its authors' code does otherwise than the equations, against the specification."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedgr import FedGR, blend, clean_posterior, losses_of
from flnl_methods.fedgr_released import FedGRReleased, ramped_decay
from test_fedgr import OneWeight, client_of, judgement

from flnl_bench.api import Batch, copy_weights, network_weights
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

RELEASE = {"a": FedGRReleased(release="a"), "b": FedGRReleased()}
OFF = {f.name: False for f in dataclasses.fields(FedGRReleased) if f.name not in FedGR.__dataclass_fields__}
del OFF["release"]


def alone(switch, cls=FedGRReleased, **options):
    """The equations with one of the eight points of the released code."""
    return cls(**{**OFF, switch: True, **options})


class FixedLogits(torch.nn.Module):
    """A model whose cross-entropies are known."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def both(self, x):
        return torch.zeros(len(x), 2), self.logits


def labels(share, given, guess):
    """What a client keeps of its labels."""
    parts = {"share": share.unsqueeze(1), "given": given, "guess": guess}
    return {**parts, "target": blend(**parts)}


def two_samples(method):
    """Cross-entropies of the given labels 1 and 3; only the first has a label in the store, with 2."""
    log_p = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]])
    rest = torch.log1p(-log_p.exp().sum(1, keepdim=True))  # a third class takes what is left
    model = FixedLogits(torch.cat([log_p, rest], 1))
    client = client_of(round=5, state={})
    share, other = method.refine_labels(
        torch.tensor([0.9, 0.1]), torch.tensor([True, False]), 0.5, torch.tensor([1, -1])
    )
    given, guess = F.one_hot(torch.tensor([0, 0]), 3).float(), torch.tensor([[0.0, 1, 0], [0, 0, 0]])
    client.scratch = labels(share, given, guess)
    assert other.tolist() == [1, -1]
    batch = Batch((torch.zeros(2, 1),), torch.tensor([0, 0]), torch.arange(2))
    return method.loss(model, batch, client).mean().item()


def test_labels_are_weighted_by_the_mean_posterior_of_the_batch():
    off = {"lambda_b": 0.0, "lambda_r": 0.0}
    assert two_samples(alone("batch_weights", **off)) == pytest.approx(0.5 * 2 + 0.5 * (2 + 0) / 2)
    assert two_samples(FedGR(**off)) == pytest.approx((1 + 0.1 * 3) / 2)


def test_the_decays_of_the_first_updates_of_a_teacher():
    decays = [ramped_decay(n, 0.99) for n in range(1, 7)]
    assert decays == pytest.approx([0, 0, 0, 1 - 1 / 3, 1 - 1 / 4, 1 - 1 / 5])
    assert ramped_decay(1000, 0.99) == 0.99


def test_the_teacher_follows_twice_a_step_over_the_life_of_the_client_and_the_warm_up_counts():
    method = alone("ramped_ema")
    client = client_of(round=0, state={"teacher": {"w": torch.tensor([0.0])}, "followed": 0})
    expected = 0.0
    for step, local in enumerate((1.0, 2.0, 5.0)):
        client.scratch["follow"] = [client.state["teacher"]["w"]], [torch.tensor([local])]
        method.on_step(None, client)
        for n in (2 * step + 1, 2 * step + 2):
            expected = ramped_decay(n, 0.99) * expected + (1 - ramped_decay(n, 0.99)) * local
    assert client.state["teacher"]["w"].item() == pytest.approx(expected)
    assert client.state["followed"] == 6


def grown(method, clean, ratio, sure, store=(-1, -1, -1)):
    """The store after a visit of a client with the labels 0, 0, 0; a sure prediction says class 2."""
    state = {"pseudo": torch.tensor(store), "usable": torch.zeros(3, dtype=torch.bool)}
    logits = torch.zeros(3, 3)
    logits[list(sure), 2] = 10.0
    method.grow_store(state, logits, torch.zeros(3).long(), torch.tensor(clean), ratio)
    assert torch.equal(state["usable"], state["pseudo"] >= 0)
    return state["pseudo"].tolist()


@pytest.mark.parametrize("release", ["a", "b"])
def test_the_store_keeps_labels_judged_clean_else_confident_predictions_else_what_it_had(release):
    method = RELEASE[release]
    assert grown(method, [True, False, False], 0.5, sure=[0, 1]) == [0, 2, -1]
    assert grown(method, [False, False, False], 0.5, sure=[], store=(0, 2, -1)) == [0, 2, -1]


def test_only_the_first_release_stores_the_labels_of_a_client_at_or_above_the_limit():
    assert grown(RELEASE["a"], [True, False, False], 0.8, sure=[]) == [0, -1, -1]
    assert grown(RELEASE["b"], [True, False, False], 0.8, sure=[]) == [-1, -1, -1]
    assert grown(RELEASE["b"], [True, False, False], 0.8, sure=[0]) == [2, -1, -1]


@pytest.mark.parametrize(("release", "alone"), [("a", True), ("b", False)])
def test_a_client_at_the_limit_itself_uses_the_store_alone_in_the_first_release(release, alone):
    q, clean = torch.tensor([0.3]), torch.tensor([False])
    share, _ = RELEASE[release].refine_labels(q, clean, 0.8, torch.tensor([1]))
    assert share.item() == (0.0 if alone else pytest.approx(0.3))
    share, _ = RELEASE[release].refine_labels(q, clean, 0.81, torch.tensor([1]))
    assert share.item() == 0.0


@pytest.mark.parametrize(("late", "replaced"), [(False, [1.0, 0.0, 0.0]), (True, [1.0, 1.0, 0.0])])
def test_coverage_counts_the_store_of_the_visit_before(late, replaced):
    class Noisy(
        FedGRReleased
    ):  # nothing is judged clean, and every prediction enters the store from round 5 on
        name = "noisy"

        def inbox(self, server, client_id):
            return judgement(server.sizes[client_id], clean=False, q=0.1, ratio=0.9)

    engine = toy_engine(Noisy(**OFF | {"late_coverage": late}, confidence=0.0))
    seen = []
    for engine.server.round in (0, 5, 6):  # the first is of the warm-up
        engine.federation.train([0])
        seen.append(engine.federation.states[0]["replaced"])
    assert seen == replaced
    assert engine.federation.states[0]["pseudo"].min() >= 0


def test_a_teacher_of_a_client_at_the_limit_is_kept_as_released():
    none = torch.zeros(10, dtype=torch.bool)
    for method, replaced in ((FedGR(), 1.0), (alone("late_coverage"), 0.0)):
        state = {"teacher": {"w": torch.tensor([1.0])}, "usable": none}
        client = client_of(round=5, received=OneWeight(2.0), state=state)
        client.scratch["usable_before"] = none
        method.revise_teacher(client, 0.8, revising=True)
        assert client.state["replaced"] == replaced


def teacher_after_a_second_visit(**switches):
    """Teacher and logits of a client before it trains in round 5, and the two models it was mixed of."""
    seen = {}

    class Spy(FedGRReleased):
        name = "spy"

        def plan(self, model, client):
            seen.update(client.scratch, teacher=copy_weights(client.state["teacher"]))
            seen["received"] = copy_weights(network_weights(client.received))
            yield client.steps(epochs=1)[:1]

        def on_step(self, model, client):
            """The teacher stays."""

    engine = toy_engine(Spy(**OFF | switches))
    engine.federation.train([0])
    old = copy_weights(engine.federation.states[0]["teacher"])
    engine.server.weights = {name: tensor + 0.5 for name, tensor in engine.server.weights.items()}
    engine.server.round = 5
    engine.federation.train([0])
    return seen, old


def test_the_teacher_is_revised_again_after_its_logits_were_taken():
    once, old = teacher_after_a_second_visit()
    twice, _ = teacher_after_a_second_visit(revise_twice=True)
    assert torch.equal(once["guide"].p, twice["guide"].p)
    for name, w_g in once["received"].items():
        torch.testing.assert_close(once["teacher"][name], 0.9 * old[name] + 0.1 * w_g)
        torch.testing.assert_close(twice["teacher"][name], 0.81 * old[name] + 0.19 * w_g)


def test_the_local_model_adds_a_look_at_plain_images_after_its_first_epoch():
    looks = []

    class Spy(FedGRReleased):
        name = "spy"

        def plan(self, model, client):
            portions = super().plan(model, client)
            yield (first := next(portions))
            before = client.state["mean_loss"].clone()
            own = losses_of(model.eval(), client)
            model.train()
            yield (rest := next(portions))
            looks.append((client.state["mean_loss"], (before + own) / 2, len(first), len(rest)))

    engine = toy_engine(alone("second_look", Spy), epochs=4)
    engine.federation.train([0])
    ((found, expected, first, rest),) = looks
    assert torch.allclose(found, expected)
    assert (first, rest) == (2, 6)  # batches of the 30 samples
    assert engine.federation.states[0]["visits"] == 2


def test_the_anchor_of_the_first_release_is_the_weak_view_in_every_step():
    class Received(torch.nn.Module):
        def features(self, x):
            return x

    method = alone("second_look", release="a", lambda_b=0.0, lambda_r=1.0)
    assert method.views() == ("strong", "weak")
    client = client_of(round=5, received=Received(), state={})
    # No label at all: only R is left, and the local features are zero.
    client.scratch = labels(torch.zeros(1), torch.eye(2)[:1], torch.zeros(1, 2))
    strong, weak = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)
    for views, loss in (((strong, weak), 0.0), ((weak, strong), 0.603052)):  # KL(softmax(4, 0) ‖ ½, ½), T = ½
        batch = Batch(views, torch.tensor([0]), torch.arange(1))
        found = method.loss(FixedLogits(torch.zeros(1, 2)), batch, client).item()
        assert found == pytest.approx(loss, abs=1e-6)


def test_with_one_epoch_there_is_no_second_look():
    engine = toy_engine(alone("second_look"), epochs=1)
    engine.federation.train([0])
    assert engine.federation.states[0]["visits"] == 1


def test_the_mean_of_a_batch_has_the_precision_of_the_logits():
    client = client_of(round=5, state={})
    given, guess = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    client.scratch = labels(torch.tensor([0.9, 0.1]), given, guess)
    batch = Batch((torch.zeros(2, 1),), torch.tensor([0, 1]), torch.arange(2))
    method = alone("batch_weights", lambda_b=0.0, lambda_r=0.0)
    loss = method.loss(FixedLogits(torch.zeros(2, 2, dtype=torch.float64)), batch, client)
    share = torch.tensor([0.9, 0.1]).double().mean()
    assert loss.dtype == torch.float64
    assert torch.equal(loss, share * torch.full((2,), 2.0, dtype=torch.float64).log())


def test_without_refining_labels_are_judged_one_by_one_and_the_store_grows_all_the_same():
    share, other = alone("batch_weights", refine=False).refine_labels(
        torch.tensor([0.9, 0.1]), torch.tensor([True, False]), 0.5, torch.tensor([1, 1])
    )
    assert share.tolist() == [1.0, 0.0]
    assert other.tolist() == [-1, -1]
    off = {"lambda_b": 0.0, "lambda_r": 0.0, "refine": False}
    client = client_of(round=5, state={})
    client.scratch = labels(share, torch.eye(2), torch.zeros(2, 2))
    batch = Batch((torch.zeros(2, 1),), torch.tensor([0, 1]), torch.arange(2))
    losses = alone("batch_weights", **off).loss(FixedLogits(torch.zeros(2, 2)), batch, client)
    assert losses[1] == 0 < losses[0]
    assert grown(alone("keep_clean", refine=False), [True, False, False], 0.5, sure=[1]) == [0, 2, -1]


def test_the_look_costs_one_pass_and_the_anchor_of_the_first_release_one_in_every_epoch():
    passes = {}
    for name, method in {"": FedGR(), **RELEASE}.items():
        # One of both behaviours: dropped batches would change the count.
        switched = alone("second_look", release=method.release) if name else method
        row = run_rounds(toy_engine(switched, fraction=0.5), rounds=1)[0]
        engine = toy_engine(switched, fraction=0.5)
        passes[name] = row["forward"] / sum(engine.server.sizes[k] for k in row["clients"])
    assert passes == {
        "": TOY_TRAINING.epochs + 3,
        "b": TOY_TRAINING.epochs + 4,
        "a": 2 * TOY_TRAINING.epochs + 3,
    }


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(8, [8, 8, 8]), (29, [29]), (40, [])],  # of 30 samples; a last batch of one joins the one before
)
def test_the_short_last_batch_of_an_epoch_is_dropped_even_if_there_is_no_other(batch_size, expected):
    sizes = []

    class Spy(FedGRReleased):
        name = "spy"

        def loss(self, model, batch, client):
            sizes.append(len(batch.y))
            return super().loss(model, batch, client)

    engine = toy_engine(alone("unguarded", Spy), batch_size=batch_size)
    (update,) = engine.federation.train([0])
    assert sizes == expected * TOY_TRAINING.epochs
    moved = any(not torch.equal(update.weights[name], w) for name, w in engine.server.weights.items())
    assert moved == bool(expected)


@pytest.mark.parametrize("release", RELEASE.values(), ids=RELEASE)
def test_clients_with_less_than_a_batch_hand_the_model_back_and_take_part_in_the_sieve(release):
    engine = toy_engine(release, batch_size=40, rounds=10)
    before = engine.server.weights
    rows = run_rounds(engine)
    assert engine.round > release.warmup(engine.terms)
    torch.testing.assert_close(dict(engine.server.weights), dict(before))  # but for the rounding of averages
    assert all(row["train_loss"] is None for row in rows)
    assert all(torch.isfinite(state["mean_loss"]).all() for state in engine.federation.states.values())


def test_a_mixture_whose_means_coincide_is_believed_as_released():
    losses = torch.tensor([1.0, 1.01, 1.01])
    assert clean_posterior(losses).tolist() == [1.0] * 3
    assert clean_posterior(losses, least_gap=0.0).tolist() != [1.0] * 3
    assert clean_posterior(torch.ones(3), least_gap=0.0).tolist() == [1.0] * 3


@pytest.mark.parametrize("switch", OFF)
def test_each_switch_alone_runs_through_the_end_of_the_warm_up(switch):
    rows = run_rounds(toy_engine(alone(switch)))
    assert all(np.isfinite(row["loss"]) for row in rows)


def test_as_released_is_all_switches_of_the_later_state():
    assert len(OFF) == 8
    assert all(getattr(FedGRReleased(), switch) for switch in OFF)
    assert FedGRReleased().release == "b"


def test_without_any_switch_it_is_fedgr_by_the_equations():
    assert run_rounds(toy_engine(FedGRReleased(**OFF))) == run_rounds(toy_engine(FedGR()))
