"""Median, trimmed mean, Krum and RFA against the closed-form checks of their specification."""

import math

import pytest
import torch
from flnl_methods.fedavg import FedAvg
from flnl_more.robust_aggregation import RFA, Krum, Median, TrimmedMean

from flnl_bench import BadInput
from flnl_bench.api import Server, Terms, Update
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import (
    AGGREGATORS,
    average,
    combined,
    coordinate_median,
    distrusted,
    geometric_median,
    krum,
    trimmed_mean,
)
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

FIVE = [(1, 5), (2, 0), (6, 1), (7, 3), (100, -50)]
SQUARE = [(0, 0), (1, 0), (0, 1), (1, 1), (0.5, 0.4), (10, 10), (-8, 9)]
LINE = [(x,) for x in (0, 0.1, 0.2, 0.3, 4, 5, 6, 7, 8, 9)]
FOUR = [(0, 0), (4, 0), (0, 3), (30, 40)]
METHODS = [Median(), TrimmedMean(), Krum(), Krum(selected=None), RFA()]


def models(points):
    """A model for each point, spread over two tensors."""
    return [
        {"a": torch.tensor(p[:1], dtype=torch.float64), "b": torch.tensor(p[1:], dtype=torch.float64)}
        for p in points
    ]


def point(weights):
    return [*weights["a"].tolist(), *weights["b"].tolist()]


def near(*values):
    return pytest.approx(values, abs=1e-6)


def of(rule, points, shares=None, **options):
    return point(rule(models(points), shares or [1] * len(points), **options))


# -- by coordinate -------------------------------------------------------------------------------------
def test_the_median_and_the_trimmed_mean_go_coordinate_by_coordinate():
    assert of(average, FIVE) == near(23.2, -8.2)
    assert of(coordinate_median, FIVE) == [6, 1]
    assert of(trimmed_mean, FIVE, distrust=0.2) == near(5, 4 / 3)


def test_the_median_of_an_even_number_is_between_the_two_middle_values():
    assert of(coordinate_median, FIVE[:4]) == [4, 2]  # the lower ones, as torch takes them, are (2, 1)


def test_the_trimmed_mean_drops_values_and_not_clients():
    # Leaving out whole models, as FNBench does, keeps the 2nd, 3rd and 4th: (3, 1.333333).
    points = [(1, 2), (2, 0), (3, 1), (4, 3), (100, -50)]
    assert of(trimmed_mean, points, distrust=0.2) == [3, 1]
    assert of(average, points[1:4]) == near(3, 4 / 3)


def test_trimming_nothing_is_the_unweighted_mean():
    assert of(trimmed_mean, FIVE, [1, 2, 3, 4, 5], distrust=0.0) == near(23.2, -8.2)


# -- Krum ------------------------------------------------------------------------------------------------
def test_krum_takes_the_model_in_the_densest_place():
    # Scores for f = 2: 2.41 2.41 2.61 2.61 1.43 524 418. Over all six distances the 4th would be chosen.
    assert of(krum, SQUARE, distrust=0.3) == [0.5, 0.4]
    assert of(krum, SQUARE, distrust=0.3, selected=3) == near(0.5, 0.4 / 3)
    assert of(krum, SQUARE, distrust=0.3, selected=5) == near(0.5, 0.48)
    assert of(krum, SQUARE, distrust=0.3, selected=None) == near(0.5, 0.4 / 3)  # q = 7 − 2 − 2


def test_of_equal_scores_the_lower_client_is_taken():
    # f = 3: scores 41.14 39.28 37.54 35.92 42.13 31 19 19 31 55. Over all distances: client 4.
    assert of(krum, LINE, distrust=0.3) == [6]


@pytest.mark.parametrize("m", [1, 2])
def test_fewer_than_three_models_are_averaged_by_krum(m):
    assert of(krum, FIVE[:m], [1, 9][:m]) == [sum(p[i] for p in FIVE[:m]) / m for i in (0, 1)]


@pytest.mark.parametrize("m", [3, 4])
def test_krum_of_three_or_four_models_distrusts_none(m):
    points = [(0.0,), (1.0,), (1.5,), (9.0,)][:m]
    assert distrusted(m, 0.3, least=3) == 0
    # Scores of m − 2 distances: 1, 0.25, 0.25, a tie; of four 3.25, 1.25, 2.5, 120.25.
    assert of(krum, points) == [1.0]


@pytest.mark.parametrize(("share", "f", "for_krum"), [(0.1, 1, 1), (0.2, 2, 2), (0.3, 3, 3), (0.4, 4, 3)])
def test_how_many_of_ten_models_are_distrusted(share, f, for_krum):
    assert distrusted(10, share, least=1) == f
    assert distrusted(10, share, least=3) == for_krum


def test_no_rule_distrusts_so_many_that_none_is_left():
    assert [distrusted(m, 1.0, least=1) for m in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]
    assert [distrusted(m, 1.0, least=3) for m in (1, 2, 3, 4, 5)] == [0, 0, 0, 0, 1]


# -- RFA -------------------------------------------------------------------------------------------------
STEPS = [(8.5, 10.75), (4.280321, 4.986766), (2.539368, 2.650138), (1.940664, 2.003915)]
WEIGHTED = [(5.666667, 8.166667), (1.929531, 3.410973), (0.807067, 2.650882), (0.395758, 2.745942)]


@pytest.mark.parametrize("step", range(4))
def test_each_step_comes_nearer_to_the_geometric_median(step):
    assert of(geometric_median, FOUR, steps=step) == near(*STEPS[step])
    assert of(geometric_median, FOUR, [100, 100, 300, 100], steps=step) == near(*WEIGHTED[step])


def test_the_limit_is_the_geometric_median():
    found = of(geometric_median, FOUR, steps=500)
    assert found == pytest.approx([1.44, 1.92], abs=1e-4)
    assert sum(math.dist(found, p) for p in FOUR) / 4 == pytest.approx(13.75, abs=1e-6)


def test_on_a_line_it_goes_to_the_median():
    line = [(0,), (1,), (10,)]
    found = [of(geometric_median, line, steps=n)[0] for n in range(4)]
    assert found == near(3.666667, 2.425390, 1.622749, 1.195653)
    assert of(geometric_median, line, steps=200)[0] == pytest.approx(1, abs=1e-3)
    assert of(geometric_median, [(-1,), (0,), (1,)])[0] == pytest.approx(0, abs=1e-5)


def test_a_model_with_most_of_the_weight_stays_where_it_is():
    # v comes to the first model, whose weight is then α/ν.
    assert of(geometric_median, [(0, 0), (1, 0)], [3, 1], steps=60) == pytest.approx([0, 0], abs=1e-4)


# -- all rules -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", AGGREGATORS)
def test_equal_models_give_that_model(name):
    assert of(AGGREGATORS[name], [(2, 3)] * 6, [1, 2, 3, 4, 5, 6]) == near(2, 3)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_one_model_is_taken_as_it_is_and_not_shared(name):
    (only,) = models([(2, 3)])
    made = AGGREGATORS[name]([only], [7])
    assert point(made) == [2, 3]
    made["a"].fill_(9)
    assert only["a"].item() == 2


@pytest.mark.parametrize("name", AGGREGATORS)
def test_neither_the_order_of_clients_nor_the_origin_matters(name):
    shares = [1, 2, 3, 4, 5, 6, 7]
    here = of(AGGREGATORS[name], SQUARE, shares)
    order = [4, 2, 6, 0, 5, 1, 3] if name != "multi-krum" else [0, 1, 6, 4, 5, 2, 3]  # there: a tie
    assert of(AGGREGATORS[name], [SQUARE[i] for i in order], [shares[i] for i in order]) == near(*here)
    moved = [(x + 100, y - 7) for x, y in SQUARE]
    assert of(AGGREGATORS[name], moved, shares) == near(here[0] + 100, here[1] - 7)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_memory_layout_is_that_of_the_models(name):
    weights = [{"w": torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last)} for _ in range(5)]
    assert AGGREGATORS[name](weights, [1] * 5)["w"].stride() == weights[0]["w"].stride()


@pytest.mark.parametrize("name", ["krum", "multi-krum", "rfa"])
def test_running_statistics_do_not_decide_who_is_far(name):
    plain = models(SQUARE)
    for odd in range(len(plain)):
        with_statistics = [
            {
                **m,
                "bn.running_var": torch.tensor([1e6 * (k == odd)]),
                "bn.running_mean": torch.tensor([1e6 * (k == odd)]),
            }
            for k, m in enumerate(plain)
        ]
        rule = AGGREGATORS[name]
        assert point(rule(with_statistics, [1] * 7)) == point(rule(plain, [1] * 7))


def test_squared_distances_are_summed_in_double_precision():
    places = [(1e4, 1.0), (0.0, 0.0), (-1e4, 0.0)]  # the first is farther away, by one in a hundred million
    weights = [{"x": torch.tensor(x), "y": torch.tensor(y)} for x, y in places]
    assert krum(weights) == weights[1]


def updates_of(points, sizes=None):
    parts = zip(models(points), sizes or [1] * len(points), strict=True)
    return [Update(k, size, weights, {}) for k, (weights, size) in enumerate(parts)]


def test_models_that_are_not_finite_are_left_out_before_any_rule():
    odd = updates_of([*FIVE[:4], (math.nan, 0), (0, math.inf)])
    assert point(combined(odd, coordinate_median, {})) == [4, 2]
    nothing = {"a": torch.tensor(3.0)}
    assert combined(odd[4:], coordinate_median, nothing) == nothing


# -- the methods -----------------------------------------------------------------------------------------
def server():
    return Server(Terms(10, 10, 1.0, 1, 8, 3, 0.5, True), 1, models([(9, 9)])[0], ())


def test_the_methods_are_the_rules_of_their_names():
    for method, expected in (
        (Median(), [6, 1]),
        (TrimmedMean(distrust=0.2), [5, 4 / 3]),
        (RFA(steps=0), [23.2, -8.2]),
    ):
        assert point(method.aggregate(server(), updates_of(FIVE))) == near(*expected)
    assert point(Krum().aggregate(server(), updates_of(SQUARE))) == [0.5, 0.4]
    multi = Krum(**Krum.variants["multi"])
    assert point(multi.aggregate(server(), updates_of(SQUARE))) == near(0.5, 0.4 / 3)


def test_only_rfa_looks_at_the_number_of_samples():
    sizes = [1000, 1, 1, 1, 1, 1, 1]
    for method in METHODS:
        plain, sized = (point(method.aggregate(server(), updates_of(SQUARE, n))) for n in (None, sizes))
        assert (plain != sized) == isinstance(method, RFA)


@pytest.mark.parametrize("method", METHODS)
def test_the_global_model_stays_where_no_model_is_finite(method):
    weights = method.aggregate(server(), updates_of([(math.nan, 0), (math.inf, 0)]))
    assert point(weights) == [9, 9]


def test_statistics_follow_the_rule_or_the_mean_of_fedavg():
    updates = [
        Update(k, n, {"w": torch.tensor([x]), "bn.running_var": torch.tensor([v])}, {})
        for k, (x, v, n) in enumerate([(0.0, 1.0, 1), (0.1, 2.0, 1), (9.0, 9.0, 2)])
    ]
    same, mean = (Krum(statistics=s).aggregate(server(), updates) for s in ("same", "mean"))
    assert (same["w"].item(), same["bn.running_var"].item()) == (0.0, 1.0)
    assert (mean["w"].item(), mean["bn.running_var"].item()) == (0.0, 5.25)
    assert Median().aggregate(server(), updates)["bn.running_var"].item() == 2.0


@pytest.mark.parametrize("method", METHODS)
def test_they_cost_what_fedavg_costs(method):
    engine = toy_engine(method)
    model = count_bytes(engine.server.weights)
    (row,) = run_rounds(engine, rounds=1)
    assert row["bytes_down"] == 3 * model
    assert row["bytes_up"] == 3 * (model + 8)  # and n_k
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples


def test_what_was_distrusted_is_recorded():
    assert TrimmedMean().numbers(10) == {"distrusted": 3}
    assert Krum().numbers(10) == {"distrusted": 3, "averaged": 1}
    assert Krum(selected=None).numbers(10) == {"distrusted": 3, "averaged": 5}
    assert Krum().numbers(2) == Krum(selected=None).numbers(2) == {"distrusted": 0, "averaged": 2}
    (row,) = run_rounds(toy_engine(Krum(), fraction=1.0, epochs=1), rounds=1)
    assert row["method"] == {"not_finite": 0, "distrusted": 1, "averaged": 1}
    (row,) = run_rounds(toy_engine(Krum(), fraction=1.0, lr=1e20), rounds=1)
    assert row["method"]["not_finite"] == 6


def test_clients_do_what_those_of_fedavg_do():
    robust, plain = (toy_engine(method, epochs=1).federation.train([0])[0] for method in (Krum(), FedAvg()))
    assert all(torch.equal(w, plain.weights[name]) for name, w in robust.weights.items())


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [(TrimmedMean, "distrust", 1.5), (Krum, "selected", 0), (RFA, "steps", -1), (RFA, "floor", 0.0)],
)
def test_values_without_meaning_are_refused(cls, name, value):
    with pytest.raises(BadInput, match=name):
        cls(**{name: value})
