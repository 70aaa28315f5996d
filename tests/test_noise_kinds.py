"""Pair, matrix, instance, margin and annotator noise, against numbers that are known in closed form."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_scenario import toy

from flnl_bench.errors import BadInput
from flnl_bench.random_streams import stream
from flnl_bench.scenario import NOISES, NoisyClient, Partition, draw_scenario, parse_setting, stage
from flnl_bench.scenario.annotators import mean_rate, wrong_share
from flnl_bench.scenario.instance import flip_rates, label_chances, mean_flip_rate, wrong_class_chances
from flnl_bench.scenario.noise import labels_and_open
from flnl_bench.scenario.pmd import (
    MARGIN_SHAPES,
    distances_to_means,
    flip_chances,
    rival_and_margin,
    scores_of,
)
from flnl_bench.scenario.transitions import errors_only

T = np.array([[0.7, 0.2, 0.1], [0, 1, 0], [0.3, 0.3, 0.4]])
COUNTED = np.repeat([0, 1, 2], [100, 100, 200])  # the labels of check 2


def client_of(setting, true, ratio, classes, seed=1, **changes):
    """One client of a data set of which only the number of classes matters, with what its kind prepares."""
    parsed = parse_setting(setting)
    world = SimpleNamespace(name="toy", family="toy", classes=range(classes))
    true = np.asarray(true)
    options = parsed.kind.option_values(parsed)
    client = NoisyClient(
        true, np.arange(len(true)), ratio, parsed, world, stream(seed, "noise"), seed, options
    )
    prepare = parsed.kind.prepare
    return replace(client, **{"shared": prepare(client) if prepare else None, **changes})


def labels_of(setting, true, ratio, classes, seed=1):
    client = client_of(setting, true, ratio, classes, seed)
    return labels_and_open(parse_setting(setting).kind.name, client)[0]


@pytest.fixture
def matrix_file(tmp_path):
    def save(matrix, name="T.npy"):
        path = tmp_path / name
        np.save(path, matrix) if path.suffix == ".npy" else np.savetxt(
            path, matrix, delimiter="," if path.suffix == ".csv" else " "
        )
        return path

    return save


# -- pair --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("step", "expected"), [("", [1, 2, 3, 0]), (",step=-1", [3, 0, 1, 2])])
def test_pair_noise_leads_to_the_next_class(step, expected):
    assert labels_of(f"pair-1.0{step}", [0, 1, 2, 3], 1.0, 4).tolist() == expected


def test_pair_noise_is_scaled_matrix_noise_by_the_cyclic_map_and_asymmetric_noise_by_the_next_class(
    matrix_file,
):
    true = stream(3, "true").integers(0, 4, 200)
    pair = labels_of("pair-1.0", true, 0.35, 4, seed=5)
    cyclic = matrix_file(np.roll(np.eye(4), 1, axis=1))
    assert np.array_equal(labels_of(f"matrix-1.0:0.2-0.4,file={cyclic}", true, 0.35, 4, seed=5), pair)
    assert (pair != true).sum() == 70
    one, other = (draw_scenario(toy(), "dir-0.5", name, 10) for name in ("pair-0.6", "asym-0.6"))
    assert np.array_equal(one.given, other.given)


def test_rates_of_classes_shift_the_errors_and_keep_their_number():
    true = np.repeat([0, 1, 2, 3], [100, 100, 200, 100])
    given = labels_of("pair-1.0,rates=1+2+1+0", true, 0.3, 4)
    # The mean of a over the labels is (100 + 200 + 200)/500 = 1: shares .3, .6, .3 and 0 of the classes.
    assert [int((given != true)[true == c].sum()) for c in range(4)] == [30, 60, 60, 0]
    assert (given != true).mean() == pytest.approx(0.3)


def test_the_share_of_a_class_that_errs_is_cut_at_one_and_a_client_without_erring_classes_is_clean(tmp_path):
    given = labels_of("pair-1.0,rates=0+5", [0] * 90 + [1] * 10, 0.4, 2)
    assert given.tolist() == [0] * 100  # all of class 1, none of class 0
    assert labels_of("pair-1.0,rates=0+5", [0] * 9, 0.4, 2).tolist() == [0] * 9
    np.savetxt(tmp_path / "rates.txt", [0, 5])
    assert (
        labels_of(f"pair-1.0,rates={tmp_path}/rates.txt", [0] * 90 + [1] * 10, 0.4, 2).tolist() == [0] * 100
    )
    np.savetxt(tmp_path / "rates.txt", [0, 0])
    with pytest.raises(BadInput, match="at least one rate must be above 0"):
        labels_of(f"pair-1.0,rates={tmp_path}/rates.txt", [0, 1], 0.4, 2)


# -- matrix ------------------------------------------------------------------------------------------
def test_the_errors_of_a_matrix_are_its_rows_without_the_diagonal():
    assert np.allclose(errors_only(T), [[0, 2 / 3, 1 / 3], [0, 1, 0], [0.5, 0.5, 0]])


def test_a_matrix_as_it_is_has_the_ratio_of_its_classes(matrix_file):
    setting = f"matrix-0.5,file={matrix_file(T)}"
    everyone = client_of(setting, COUNTED, np.nan, 3)
    assert NOISES["matrix"].nominal(everyone) == pytest.approx(0.375)
    assert NOISES["matrix"].announced(everyone) == pytest.approx(0.5 * 0.375)
    equal = client_of(setting, [0, 1, 2] * 10, np.nan, 3)
    assert NOISES["matrix"].nominal(equal) == pytest.approx(0.3)
    true = COUNTED.repeat(100)  # 40,000 draws: a standard deviation of .002
    given = labels_of(setting, true, np.nan, 3)
    rows = [np.bincount(given[true == c], minlength=3) / (true == c).sum() for c in range(3)]
    assert np.allclose(rows, T, atol=0.02)
    assert (given != true).mean() == pytest.approx(0.375, abs=0.01)


def test_a_scaled_matrix_has_counted_candidates_of_which_some_cannot_change(matrix_file):
    true = COUNTED.repeat(100)
    given = labels_of(f"matrix-1.0:0.4-0.4,file={matrix_file(T, 'T.csv')}", true, 0.4, 3)
    assert (given != true).mean() == pytest.approx(0.3, abs=0.01)
    assert (given[true == 1] == 1).all()


def test_a_uniform_matrix_is_symmetric_noise(matrix_file):
    true = stream(1, "true").integers(0, 5, 20_000)
    uniform = matrix_file(np.full((5, 5), 0.2), "T.txt")
    counts = []
    for setting in ("sym-1.0", f"matrix-1.0:0.5-1,file={uniform}"):
        given = labels_of(setting, true, 0.5, 5)
        assert (given != true).sum() == 10_000
        counts.append(np.bincount((given - true) % 5, minlength=5))
    assert np.allclose(*counts, atol=250)  # 2,500 of each shift, standard deviation of a difference 61


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        ([[0.7, 0.3, 0], [0, 1, 0], [0.3, 0.3, 0.39]], "row 2 of the matrix sums to 0.99, not to 1"),
        ([[0.7, 0.3, 0], [-0.5, 1.5, 0], [0, 0, 1]], "has -0.5 in row 1; allowed: 0 or more"),
        ([[0.7, 0.3], [0, 1]], r"must hold numbers of shape \[3, 3\], not \[2, 2\]"),
        ([[np.nan, 0, 1], [0, 1, 0], [0, 0, 1]], "has nan in row 0"),
    ],
)
def test_a_matrix_that_is_none_is_refused_by_its_row(matrix_file, matrix, says):
    with pytest.raises(BadInput, match=says):
        labels_of(f"matrix-1.0,file={matrix_file(np.array(matrix))}", [0, 1, 2], np.nan, 3)


# -- instance ----------------------------------------------------------------------------------------
def test_chances_of_labels_by_hand():
    image, weights = np.array([[1.0, -1.0]]), np.array([[0, 1, 2], [0, 0, 1]])
    projected, true = image @ weights, np.array([0])
    assert projected.tolist() == [[0, 1, 1]]
    chances = label_chances(wrong_class_chances(projected, true), true, np.array([0.3]))
    assert np.allclose(chances, [[0.7, 0.15, 0.15]])
    assert np.allclose(
        wrong_class_chances(np.array([[0, 9e4, 0.0]]), true), [[0, 1, 0]]
    )  # raw pixels are large


MEANS = {0.2: 0.205525, 0.3: 0.300444, 0.5: 0.5, 0.75: 0.748236, 0.9: 0.871240, 1.0: 0.920212}


@pytest.mark.parametrize(("ratio", "mean"), MEANS.items())
def test_flip_rates_have_the_mean_of_a_truncated_normal(ratio, mean):
    assert mean_flip_rate(ratio) == pytest.approx(mean, abs=1e-6)
    drawn = flip_rates(ratio, (np.arange(5000) + 0.5) / 5000)
    assert drawn.mean() == pytest.approx(mean, abs=1e-4)
    assert 0 <= drawn.min() <= drawn.max() <= 1


@pytest.mark.parametrize(("bounds", "mean"), [("0.2-0.4", 0.301149), ("0.5-1.0", 0.736137), ("0-0", 0.0)])
def test_instance_noise_announces_the_mean_over_its_range(bounds, mean):
    assert parse_setting(f"inst-0.6:{bounds}").expected_ratio == pytest.approx(0.6 * mean, abs=1e-6)


def test_a_ratio_of_zero_is_clean_although_flip_rates_around_it_are_not():
    assert flip_rates(0.0, (np.arange(5000) + 0.5) / 5000).mean() == pytest.approx(0.079788, abs=1e-4)
    assert draw_scenario(toy(), "iid", "inst-1.0:0-0", 6).wrong.sum() == 0


def test_the_same_image_errs_alike_at_all_clients_unless_each_has_a_projection():
    data = toy(1200)
    data = replace(data, train_x=data.train_x[:1].repeat(1200, axis=0))  # one image, many clients
    for projection, most in (("shared", 1), ("client", 3)):
        setting = f"inst-1.0:0.5-0.5,projection={projection},scale=255"
        wrong = draw_scenario(data, "iid", setting, 6)
        targets = [set(wrong.given[wrong.wrong & (wrong.true == c)]) for c in range(5)]
        assert max(map(len, targets)) >= most
        assert all(len(reached) == 1 for reached in targets) == (projection == "shared")
        assert wrong.overall == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("option", ["scale=0.001", "centre=true,scale=0.001"])
def test_dim_images_give_any_wrong_class(option):
    scenario = draw_scenario(toy(3000), "iid", f"inst-1.0:0.5-0.5,{option}", 3)
    wrong = scenario.wrong
    counts = np.bincount((scenario.given - scenario.true)[wrong] % 5, minlength=5)
    assert counts[0] == 0
    assert counts[1:].min() > 300  # 375 expected, standard deviation 17


# -- margin ------------------------------------------------------------------------------------------
def test_shapes_of_the_flip_chance():
    margin = np.array([0, 0.2, 0.5, 1])
    assert np.allclose(MARGIN_SHAPES[1](margin), [0.5, 0.48, 0.375, 0])
    assert np.allclose(MARGIN_SHAPES[2](margin), [1, 0.992, 0.875, 0])
    assert np.allclose(MARGIN_SHAPES[3](margin), [1, 0.917333, 0.708333, 0], atol=1e-6)


def test_flip_chances_have_the_ratio_of_the_client():
    shape = MARGIN_SHAPES[1](np.array([0, 0.5, 1, 0.2]))
    assert shape.mean() == pytest.approx(0.33875)
    assert np.allclose(flip_chances(shape, 0.3), [0.442804, 0.332103, 0, 0.425092], atol=1e-6)
    assert np.allclose(flip_chances(shape, 0.6), [0.885609, 0.664207, 0, 0.850185], atol=1e-6)
    assert flip_chances(shape, 0.8).tolist() == [1, 1, 0, 1]  # more than three quarters cannot be reached


def test_the_rival_is_the_likeliest_wrong_class_and_a_sample_beyond_the_boundary_has_no_margin():
    rival, margin = rival_and_margin(np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]]), np.array([0, 1]))
    assert rival.tolist() == [1, 2]
    assert np.allclose(margin, [0.3, 0])


def test_samples_become_their_rival_by_given_scores(tmp_path):
    data = toy(600)
    scores = np.full((600, 5), 0.05)
    scores[np.arange(600), data.train_y], scores[np.arange(600), (data.train_y + 2) % 5] = 0.5, 0.35
    np.save(tmp_path / "scores.npy", scores)
    scenario = draw_scenario(data, "iid", f"pmd-1.0:0.3-0.3,type=3,scores={tmp_path}/scores.npy", 3)
    assert set((scenario.given - scenario.true)[scenario.wrong] % 5) == {2}
    assert scenario.overall == pytest.approx(0.3, abs=0.06)
    np.save(tmp_path / "scores.npy", scores * 0.9)
    with pytest.raises(BadInput, match=r"scores: row 0 sums to 0\.9, not to 1"):
        draw_scenario(data, "iid", f"pmd-1.0,scores={tmp_path}/scores.npy", 3)


def test_built_in_scores_are_as_certain_as_they_should_be():
    data = toy(600)
    means = np.stack([data.train_x[data.train_y == c].mean(axis=0) for c in range(5)])
    distances = ((data.train_x[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert np.allclose(distances_to_means(data), distances)
    scores = scores_of(SimpleNamespace(dataset=data, classes=5, options={"scores": None}))
    assert np.allclose(scores.sum(axis=1), 1)
    assert scores.max(axis=1).mean() == pytest.approx(0.8)


def test_a_ratio_that_margins_do_not_allow_is_told():
    sure = np.eye(5)[toy(600).train_y]  # every margin is 1: nothing ever flips
    parsed = parse_setting("pmd-1.0")
    client = NoisyClient(toy(600).train_y, np.arange(600), 0.3, parsed, toy(600), stream(1, "x"), 1)
    with pytest.warns(UserWarning, match="too few samples near the boundary"):
        given = labels_and_open("pmd", replace(client, options={"type": 1}, shared=sure))[0]
    assert np.array_equal(given, client.true)


# -- annotators --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rate", "classes", "worse", "aggre"),
    [
        (0.2, 10, 0.488, 0.075556),
        (0.2, 100, 0.488, 0.072323),
        (0.3, 10, 0.657, 0.16),
        (0.3, 100, 0.657, 0.153636),
        (0.1766, 10, 0.441745, 0.059721),
    ],
)
def test_the_share_of_wrong_labels_of_three_annotators(rate, classes, worse, aggre):
    assert wrong_share("random", rate, 1 / (classes - 1)) == rate
    assert wrong_share("worse", rate, 1 / (classes - 1)) == pytest.approx(worse, abs=1e-6)
    assert wrong_share("aggre", rate, 1 / (classes - 1)) == pytest.approx(aggre, abs=1e-6)


@pytest.mark.parametrize(("use", "expected"), [("random", 0.2), ("worse", 0.488), ("aggre", 0.075556)])
@pytest.mark.parametrize("rates", ["same", "own"])
def test_drawn_annotations_have_that_share(use, expected, rates):
    true = stream(1, "true").integers(0, 10, 2000)
    drawn = [
        (labels_of(f"annot-1.0,use={use},rates={rates}", true, 0.2, 10, seed) != true).mean()
        for seed in range(40)
    ]
    spread = 0.06 if rates == "own" else 0.006  # own rates differ from client to client
    assert np.mean(drawn) == pytest.approx(expected, abs=spread)


def test_annotators_announce_what_is_used():
    def announced(setting, **changes):
        return NOISES["annot"].announced(client_of(setting, np.arange(10), np.nan, 10, **changes))

    assert announced("annot-0.5") == pytest.approx(0.5 * 0.2)
    assert announced("annot-0.5,use=worse") == pytest.approx(0.5 * 0.48)
    assert announced("annot-1.0:0.3-0.3,use=aggre") == pytest.approx(0.16)
    assert announced("annot-1.0,use=worse,pool=9") == pytest.approx(0.488)  # rates drawn one by one
    assert [mean_rate(0.3), mean_rate(1.0)] == [0.3, 0.75]


def test_annotators_err_as_their_matrix_says(matrix_file):
    path = matrix_file(np.array([[0.5, 0.5, 0], [0, 1, 0], [0, 0.1, 0.9]]))
    client = client_of(f"annot-1.0,use=worse,errors={path}", COUNTED.repeat(20), 0.2, 3)
    given = labels_and_open("annot", client)[0]
    assert set(given[client.true != given]) == {1}
    assert (given[client.true == 0] != 0).mean() == pytest.approx(0.488, abs=0.04)
    assert NOISES["annot"].announced(replace(client, setting=parse_setting("annot-1.0:0.2-0.2"))) == (
        pytest.approx(0.75 * 0.488)  # class 1, a quarter, has no errors
    )


def test_a_pool_of_annotators_is_the_same_for_all_clients():
    one, other = (client_of("annot-1.0,pool=7", [0, 1, 2], 0.2, 3, rng=stream(k, "x")) for k in (1, 2))
    team = one.shared
    assert np.array_equal(team.confusion, other.shared.confusion)
    assert team.rates.shape == (7,)
    assert 0.1 <= team.rates.min() < team.rates.max() <= 0.3
    assert np.allclose(team.confusion.sum(axis=2), 1)
    assert np.trace(team.confusion, axis1=1, axis2=2).tolist() == [0] * 7
    assert NOISES["annot"].nominal(one) == pytest.approx(team.rates.mean())
    true = np.arange(6000) % 3
    wrong = labels_of("annot-1.0,pool=7", true, 0.2, 3) != true
    assert wrong.mean() == pytest.approx(
        client_of("annot-1.0,pool=7", true, 0.2, 3).shared.rates.mean(), abs=0.02
    )


# -- all kinds ---------------------------------------------------------------------------------------
KINDS = ("pair", "matrix", "inst", "pmd", "open", "annot")


@pytest.fixture
def written_as(matrix_file):
    """How each kind is written for five classes of which two are held out for open-set noise."""
    uniform = matrix_file(np.full((5, 5), 0.2))
    behind = {"matrix": f",file={uniform}", "open": ",pool=classes:3+4"}
    return lambda kind, numbers: f"{kind}-{numbers}{behind.get(kind, '')}"


def drawn(dataset, setting, clients=8, **options):
    return draw_scenario(
        stage(dataset, setting), options.pop("partition", "dir-0.5"), setting, clients, **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_noisy_clients_every_kind_is_clean_to_the_bit(kind, written_as):
    nobody = drawn(toy(), written_as(kind, "0.0"))
    clean = draw_scenario(stage(toy(), written_as(kind, "0.0")), "dir-0.5", "clean", 8)
    assert nobody.fingerprint == clean.fingerprint
    assert nobody.expected_noise == 0


@pytest.mark.parametrize("kind", KINDS)
def test_noisy_clients_and_ratios_of_a_seed_are_those_of_the_other_kinds(kind, written_as):
    some = drawn(toy(), written_as(kind, "0.6:0.1-0.3"), seed=3)
    few, all_of_them = (draw_scenario(toy(), "dir-0.5", f"sym-{phi}:0.1-0.3", 8, 3) for phi in ("0.6", "1.0"))
    assert [k == kind for k in some.kinds] == [k == "sym" for k in few.kinds]
    assert np.array_equal(some.nominal, few.nominal)
    assert np.array_equal(few.nominal, np.where(np.array(some.kinds) == kind, all_of_them.nominal, 0))
    assert some.expected_noise == pytest.approx(0.6 * 0.2, abs=6e-3)  # a truncated normal's mean is not ρ


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_client_changes_no_other_clients_labels_or_images(kind, written_as, monkeypatch):
    setting = written_as(kind, "1.0")
    data = stage(toy(), setting)
    held = [np.arange(k * 40, k * 40 + 40) for k in range(8)]
    shorter = [held[0][:11], *held[1:]]
    made = []
    for clients in (held, shorter):
        monkeypatch.setattr(Partition, "split", lambda *_, clients=clients: clients)
        made.append(draw_scenario(data, "iid", setting, 8))
    others = np.concatenate(held[1:])
    assert np.array_equal(made[0].given[others], made[1].given[others])
    assert np.array_equal(made[0].true[others], made[1].true[others])
    if kind == "open":
        assert np.array_equal(made[0].replaced[others], made[1].replaced[others])
