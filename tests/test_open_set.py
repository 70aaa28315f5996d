"""Open-set noise: images of no class, the pool that they come from, and how they are judged."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from command_line import flnl, rounds_of, tiny
from known_world import world
from test_scenario import toy

import flnl_bench as fb
from flnl_bench import Beliefs
from flnl_bench.data import load_dataset
from flnl_bench.errors import BadInput
from flnl_bench.random_streams import stream
from flnl_bench.results.diagnostics import Probe, belief_arrays, judge, truly_noisy
from flnl_bench.scenario import (
    check_dataset,
    client_table,
    draw_scenario,
    dress,
    load_scenario,
    parse_setting,
    save_scenario,
    scenario_summary,
    stage,
)
from flnl_bench.scenario.open_set import deal_pool, in_shape

HELD = "open-1.0:0.3-0.3,pool=classes:3+4,omega=0.5"


def drawn(dataset, setting, clients=4, **options):
    """A staged data set and its scenario."""
    staged = stage(dataset, setting)
    return staged, draw_scenario(staged, "iid", setting, clients, **options)


@pytest.fixture
def pool_file(tmp_path):
    """300 colour images of another size."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (303, 6, 6, 3), dtype=np.uint8)
    labels = np.arange(303) % 3
    file = tmp_path / "other.npz"
    np.savez(file, train_x=images[3:], train_y=labels[3:], test_x=images[:3], test_y=labels[:3])
    return file


# -- drawing -----------------------------------------------------------------------------------------
def test_candidates_are_open_or_closed_errors_by_omega():
    setting = "open-1.0:0.3-0.3,pool=classes:4,omega=0.5"
    data = toy(625, train_y=np.arange(625) % 5)  # 500 images of four classes
    _, scenario = drawn(data, setting, clients=1)
    assert (scenario.sizes, scenario.classes) == ((500,), 4)
    assert scenario.wrong.sum() == 150
    assert scenario.is_open.sum() == (scenario.replaced >= 0).sum() == 75
    assert np.array_equal(scenario.is_open, scenario.true == -1)
    assert np.array_equal(scenario.slots[~scenario.is_open], scenario.true[~scenario.is_open])


def test_held_out_classes_leave_the_label_space_and_the_test_set_and_are_the_pool():
    data = toy()
    staged, scenario = drawn(data, HELD)
    assert staged.classes == ("class 0", "class 1", "class 2")
    assert set(staged.train_y) == set(staged.test_y) == {0, 1, 2}
    assert len(staged.pool.images) == (data.train_y > 2).sum()
    assert np.array_equal(staged.train_x, data.train_x[data.train_y < 3])
    by_name = stage(data, "open-1.0,pool=classes:class 4+class 3")
    assert by_name.digest == staged.digest
    assert stage(staged, HELD) is staged
    assert scenario.classes == 3


def test_open_slots_have_an_image_of_the_pool_and_keep_their_label():
    data = toy()
    staged, scenario = drawn(data, HELD)
    dressed = dress(staged, scenario)
    is_open = scenario.is_open
    assert np.array_equal(scenario.given[is_open], staged.train_y[is_open])
    assert np.array_equal(dressed.train_x[is_open], staged.pool.images[scenario.replaced[is_open]])
    assert np.array_equal(dressed.train_x[~is_open], staged.train_x[~is_open])
    used = scenario.replaced[is_open]
    assert len(set(used)) == len(used)  # none twice in the whole federation
    assert np.array_equal(staged.train_x, data.train_x[data.train_y < 3])  # not changed in place


def test_the_pool_may_be_another_data_set_of_another_shape(pool_file):
    setting = f"open-0.5,pool=npz:{pool_file}"
    staged, scenario = drawn(toy(), setting)
    assert scenario.classes == 5
    dressed = dress(staged, scenario)
    assert dressed.train_x.shape == staged.train_x.shape
    assert (dressed.train_x[scenario.is_open] != staged.train_x[scenario.is_open]).any(axis=(1, 2, 3)).all()
    assert (dressed.mean, dressed.pool) == (staged.mean, None)
    assert scenario.pool_digest == load_dataset(f"npz:{pool_file}").digest


def test_grey_becomes_equal_colours_and_sizes_are_fitted():
    grey = np.full((2, 1, 4, 4), 77, np.uint8)
    coloured = in_shape(grey, (3, 8, 8))
    assert coloured.shape == (2, 3, 8, 8)
    assert set(coloured.ravel()) == {77}
    assert in_shape(coloured, (1, 4, 4)).shape == (2, 1, 4, 4)
    ramp = np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4)
    assert in_shape(ramp, (3, 4, 4)) is ramp
    assert np.array_equal(in_shape(ramp[:, :1], (3, 4, 4)), ramp[:, :1].repeat(3, axis=1))


def test_clients_take_from_their_own_part_and_then_from_what_is_left():
    calm = deal_pool([2, 2, 2], 12, stream(1, "pool"))
    greedy = deal_pool([2, 7, 2], 12, stream(1, "pool"))
    assert [len(rows) for rows in greedy] == [2, 7, 2]
    assert len(set(np.concatenate(greedy))) == 11
    assert np.array_equal(calm[0], greedy[0])
    assert np.array_equal(calm[2], greedy[2])
    assert sorted(np.concatenate(deal_pool([0, 12, 0], 12, stream(1, "pool")))) == list(range(12))


def test_a_pool_that_is_too_small_is_refused():
    with pytest.raises(BadInput, match=r"\d+ images are to be replaced, but the pool has \d+; take a larger"):
        drawn(toy(), "open-1.0:0.9-0.9,pool=classes:4")


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("classes:nine", "unknown class 'nine'"),
        ("classes:0+1+2+3", "of 5 classes at least two must not be held out"),
        ("classes:", "must be a data set, or classes:A"),
        ("cifr10", r"did you mean 'cifar10'\?"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(pool, says):
    with pytest.raises(BadInput, match=says):
        drawn(toy(), f"open-1.0,pool={pool}")


def test_a_data_set_is_not_its_own_pool():
    with pytest.raises(BadInput, match="digits has the same images as digits"):
        stage(load_dataset("digits"), "open-1.0,pool=digits")


# -- the scenario ------------------------------------------------------------------------------------
def test_the_fingerprint_covers_the_list_of_images_and_the_pool():
    scenario = drawn(toy(), HELD)[1]
    rows = np.flatnonzero(scenario.replaced >= 0)[:2]
    swapped = scenario.replaced.copy()
    swapped[rows] = swapped[rows[::-1]]
    others = (
        dataclasses.replace(scenario, replaced=swapped),
        dataclasses.replace(scenario, pool_digest="other"),
        dataclasses.replace(scenario),
    )
    assert [other.fingerprint == scenario.fingerprint for other in others] == [False, False, True]


def test_transitions_have_a_row_for_open_images():
    scenario = drawn(toy(), HELD)[1]
    transitions = scenario.transitions
    assert transitions.shape == (4, 4, 3)
    assert transitions.sum(axis=(1, 2)).tolist() == list(scenario.sizes)
    assert transitions[:, 3].sum() == scenario.is_open.sum() > 0
    right = np.trace(transitions[:, :3], axis1=1, axis2=2)
    assert np.allclose(1 - right / scenario.sizes, scenario.realised)


def test_the_description_tells_open_images_and_other_errors_apart():
    scenario = drawn(toy(), HELD)[1]
    for about in (scenario_summary(scenario), *client_table(scenario)):
        assert about["realised"] == pytest.approx(about["realised_open"] + about["realised_closed"], abs=2e-4)
        assert about["realised_open"] > 0
    assert "realised_open" not in scenario_summary(draw_scenario(toy(), clients=4))


def test_pictures_have_a_row_for_open_images_and_count_them_where_they_are():
    from flnl_bench import plots

    scenario = drawn(toy(), HELD)[1]
    (image,) = plots.transitions(scenario).axes[0].images
    assert image.get_array().shape == (4, 3)
    before, after = plots.partition(scenario).axes[:2]
    sizes = [sum(axis.collections[0].get_sizes()) for axis in (before, after)]
    assert sizes[0] == pytest.approx(sizes[1])  # as many images before the noise as after it


def test_a_saved_scenario_comes_back_with_its_images(tmp_path):
    staged, scenario = drawn(toy(), HELD)
    npz, _ = save_scenario(scenario, tmp_path / "open")
    loaded = load_scenario(npz)
    assert loaded.fingerprint == scenario.fingerprint
    assert np.array_equal(loaded.replaced, scenario.replaced)
    assert np.array_equal(dress(staged, loaded).train_x, dress(staged, scenario).train_x)
    check_dataset(loaded, staged)
    with np.load(npz) as arrays:
        assert arrays["transitions"].shape == (4, 4, 3)


def test_another_pool_is_refused():
    staged, scenario = drawn(toy(), HELD)
    other = dataclasses.replace(staged, pool=dataclasses.replace(staged.pool, digest="other"))
    for strange in (other, dataclasses.replace(staged, pool=None)):
        with pytest.raises(BadInput, match="was made with another pool of images"):
            check_dataset(scenario, strange)


# -- judging -----------------------------------------------------------------------------------------
# Samples 3 and 4 are of no class, sample 2 is labelled wrong; the numbers are those of the specification.
OPEN = dataclasses.replace(
    world(true=[0, 1, 5, -1, -1, 1], given=[0, 1, 2, 3, 0, 1], clients=[range(6)], kinds=("open",)),
    classes=6,
    replaced=np.array([-1, -1, -1, 0, 1, -1]),
)
PREDICTED = np.array([0, 2, 2, 3, 1, 1])


def test_open_images_are_memorised_for_themselves():
    assert OPEN.overall == 0.5
    assert Probe(OPEN).measure(PREDICTED) == {
        "memorised": 100.0,
        "memorised_open": 50.0,
        "accuracy_clean": pytest.approx(200 / 3),
        "accuracy_wrong": 0.0,
    }
    assert truly_noisy(OPEN).tolist() == [True]


def test_an_open_image_is_not_clean():
    report = judge({0: Beliefs(clean=np.array([1, 1, 0, 1, 0, 1], bool))}, OPEN, [0])
    assert report["sieve_precision"] == 0.75
    assert report["sieve_recall"] == 1
    assert report["sieve_f_score"] == pytest.approx(0.857143, abs=1e-6)
    assert report["sieve_open_recall"] == 0.5


def test_the_only_right_label_of_an_open_image_is_none():
    labels = np.array([0, 2, 5, 3, -1, 1])
    report = judge({0: Beliefs(labels=labels, noise_ratio=0.4)}, OPEN, [0])
    assert report["label_coverage"] == pytest.approx(100 * 5 / 6)
    assert report["label_accuracy"] == pytest.approx(75)  # 0, 5 and the last of four
    assert report["label_accuracy_wrong"] == 100
    assert report["label_open_dropped"] == 50
    assert report["noise_ratio_error"] == pytest.approx(0.1)


def test_saved_beliefs_tell_open_images():
    arrays = belief_arrays({0: Beliefs()}, OPEN)
    assert arrays["transitions"].shape == (1, 7, 6)
    assert arrays["transitions"][0, 6].tolist() == [1, 0, 0, 1, 0, 0]
    assert arrays["realised_open"].tolist() == [pytest.approx(1 / 3)]


# -- from the command line ---------------------------------------------------------------------------
def test_a_run_goes_from_a_setting_and_from_its_exported_scenario_to_the_same_rounds(tmp_path, pool_file):
    for setting in ("open-1.0,pool=classes:7+8+9,omega=0.5", f"open-0.5,pool=npz:{pool_file}"):
        first = flnl(*tiny(tmp_path / "runs", "--json", setting=setting)).json
        assert first["setting"] == parse_setting(setting).name
        rows = rounds_of(first["run_dir"])
        assert {"memorised", "memorised_open"} <= rows[-1]["diagnostics"].keys()
        options = ["--setting", setting, "--clients", 4, "--samples", 200]
        made = flnl("scenario", "export", *options, "--output", tmp_path / "s", "--json").json
        assert made["fingerprint"] == first["scenario"]
        again = ["--method", "fedavg", "--scenario", tmp_path / "s.npz", "--rounds", 3, "--epochs", 1]
        second = flnl("run", *again, "--fraction", 0.5, "--out", tmp_path / "runs", "--json").json
        assert rounds_of(second["run_dir"]) == rows
        assert "% wrong labels (" in flnl("scenario", "show", "--scenario", tmp_path / "s.npz").out


def test_a_suite_takes_settings_with_options(tmp_path):
    settings = ["pair-1.0,step=-1", "open-1.0,pool=classes:9"]
    training = {"rounds": 1, "clients": 4, "samples": 100, "epochs": 1, "fraction": 0.5}
    for setting in settings:
        fb.run("fedavg", setting, **training, device="cpu", out=tmp_path)
    suite = {"methods": ["fedavg"], "settings": settings, "training": training}
    assert fb.run_suite(suite, out=tmp_path, device="cpu", dry_run=True).counts["done"] == 2
    assert sorted(folder.name for folder in (tmp_path / "digits" / "iid").iterdir()) == [
        "open-1.0,pool=classes_9",
        "pair-1.0,step=-1",
    ]
    told = flnl("leaderboard", tmp_path, "--format", "csv", "--output", tmp_path / "table.csv")
    assert told.code == 0
    assert '"open-1.0,pool=classes:9"' in (tmp_path / "table.csv").read_text()
    assert json.loads(next(tmp_path.rglob("run.json")).read_text())["config"]["setting"] in settings


def forged(scenario, tmp_path, **changes):
    """A saved scenario of which something was changed, fingerprint and all."""
    save_scenario(dataclasses.replace(scenario, **changes), tmp_path / "forged")
    return tmp_path / "forged"


def test_forged_images_are_refused(tmp_path):
    staged, scenario = drawn(toy(), HELD)
    row = np.flatnonzero(scenario.is_open)[0]
    twice, beyond, true = scenario.replaced.copy(), scenario.replaced.copy(), scenario.true.copy()
    twice[row] = scenario.replaced[np.flatnonzero(scenario.is_open)[1]]
    beyond[row] = len(staged.pool.images)
    true[row] = 0
    for changes, says in (
        ({"replaced": twice}, "different rows of the pool"),
        ({"true": true}, "must be -1 where images are replaced, and nowhere else"),
        ({"pool_digest": None}, "come with the digest of their pool"),
        ({"pool_digest": "0"}, "pool_digest is '0', but must be 32 hex digits"),
        ({"announced": 0.3}, "must not have an announced ratio"),
        ({"setting": "sym-1.0:0.3-0.3", "kinds": ("sym",) * 4}, "sym-1.0:0.3-0.3 has no pool"),
    ):
        with pytest.raises(BadInput, match=says):
            load_scenario(forged(scenario, tmp_path, **changes))
    other = (scenario.given + scenario.is_open) % 3  # labels that were not those of the places
    for changes, says in (
        ({"replaced": beyond}, "another pool of images"),
        ({"given": other}, "true labels"),
    ):
        with pytest.raises(BadInput, match=says):
            check_dataset(load_scenario(forged(scenario, tmp_path, **changes)), staged)
