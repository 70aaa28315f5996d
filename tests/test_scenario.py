from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from flnl_bench.data import Augmentation, Dataset
from flnl_bench.errors import BadInput
from flnl_bench.scenario import (
    check_dataset,
    client_table,
    draw_scenario,
    load_scenario,
    save_scenario,
    scenario_summary,
)


def toy(total: int = 600, classes: int = 5, **changes) -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (total + 50, 1, 4, 4), dtype=np.uint8)
    labels = rng.integers(0, classes, total + 50)
    fields = {
        "name": "toy",
        "train_x": images[:total],
        "train_y": labels[:total],
        "test_x": images[total:],
        "test_y": labels[total:],
        "classes": tuple(f"class {i}" for i in range(classes)),
        "mean": (0.5,),
        "std": (0.3,),
        "augmentation": Augmentation(size=4),
    }
    return Dataset(**{**fields, **changes})


def same_clients(a, b) -> bool:
    return len(a.clients) == len(b.clients) and all(map(np.array_equal, a.clients, b.clients))


@pytest.fixture(scope="module")
def dataset():
    return toy()


def test_the_same_names_give_the_same_scenario(dataset):
    first, again = (draw_scenario(toy(), "dir-0.3", "mixed-0.6", 10, seed=3) for _ in range(2))
    assert same_clients(first, again)
    assert np.array_equal(first.given, again.given)
    assert first.fingerprint == again.fingerprint
    assert len(first.fingerprint) == 16


def test_another_seed_changes_partition_and_noise(dataset):
    one, two = (draw_scenario(dataset, "dir-0.3", "sym-1.0", 10, seed) for seed in (1, 2))
    assert not same_clients(one, two)
    assert not np.array_equal(one.given, two.given)
    assert one.fingerprint != two.fingerprint


def test_the_partition_does_not_depend_on_the_setting(dataset):
    names = ("clean", "sym-1.0", "asym-0.6", "mixed-1.0", "sym-0.6:0.2-0.4")
    scenarios = [draw_scenario(dataset, "dir-0.3", name, 10) for name in names]
    assert all(same_clients(scenarios[0], other) for other in scenarios[1:])
    assert len({scenario.fingerprint for scenario in scenarios}) == len(names)


def test_the_noise_of_clients_does_not_depend_on_the_partition(dataset):
    iid, skewed = (draw_scenario(dataset, name, "mixed-0.6", 10) for name in ("iid", "dir-0.3"))
    assert iid.kinds == skewed.kinds
    assert np.array_equal(iid.nominal, skewed.nominal)


def test_clean_clients_are_untouched_and_noisy_ones_have_their_ratio(dataset):
    scenario = draw_scenario(dataset, "dir-0.5", "sym-0.6", 10)
    assert scenario.kinds.count("sym") == 6
    for rows, kind, nominal, realised in zip(
        scenario.clients, scenario.kinds, scenario.nominal, scenario.realised, strict=True
    ):
        expected = np.floor(nominal * len(rows) + 1e-9) / len(rows) if kind == "sym" else 0
        assert realised == pytest.approx(expected)
    assert np.array_equal(scenario.true, dataset.train_y)
    assert scenario.overall == pytest.approx(scenario.wrong.mean())


def test_a_ratio_of_one_makes_every_label_wrong(dataset):
    assert draw_scenario(dataset, "iid", "sym-1.0:1-1", 10).wrong.all()


def test_transitions_count_every_sample_of_a_client(dataset):
    scenario = draw_scenario(dataset, "iid", "asym-1.0", 6)
    transitions = scenario.transitions
    assert transitions.shape == (6, 5, 5)
    assert transitions.sum(axis=(1, 2)).tolist() == list(scenario.sizes)
    follows = np.eye(5, dtype=bool) | np.roll(np.eye(5, dtype=bool), 1, axis=1)  # default map: next class
    assert transitions[:, ~follows].sum() == 0
    wrong = transitions.sum(axis=(1, 2)) - np.trace(transitions, axis1=1, axis2=2)
    assert np.allclose(wrong / scenario.sizes, scenario.realised)


def test_a_subset_is_used_and_the_other_rows_keep_their_labels(dataset):
    scenario = draw_scenario(dataset, "iid", "sym-1.0", 10, samples=200)
    used = np.concatenate(scenario.clients)
    assert len(np.unique(used)) == len(used) == sum(scenario.sizes) == 200
    assert not np.delete(scenario.wrong, used).any()
    assert len(scenario.given) == 600


@pytest.mark.parametrize("samples", [0, 601])
def test_a_subset_must_fit_the_data(dataset, samples):
    with pytest.raises(BadInput, match=f"from 1 to 600, .* not {samples}"):
        draw_scenario(dataset, samples=samples)


def test_more_clients_than_samples_is_bad_input(dataset):
    with pytest.raises(BadInput, match="each of 700 clients at least 1 of 600 images"):
        draw_scenario(dataset, clients=700)


def test_one_changed_label_changes_the_fingerprint(dataset):
    scenario = draw_scenario(dataset, clients=10)
    given = scenario.given.copy()
    given[17] = (given[17] + 1) % 5
    assert replace(scenario, given=given).fingerprint != scenario.fingerprint


def test_a_row_that_moves_to_another_client_changes_the_fingerprint(dataset):
    scenario = draw_scenario(dataset, "iid", "clean", clients=2)
    rows = np.concatenate(scenario.clients)
    moved = replace(scenario, clients=(rows[:299], rows[299:]))
    assert moved.fingerprint != replace(scenario, clients=(rows[:300], rows[300:])).fingerprint


def test_a_file_that_was_moved_gives_the_same_scenario():
    here, there = (draw_scenario(toy(name=f"npz:{place}/toy.npz"), clients=10) for place in ("a", "b"))
    assert here.fingerprint == there.fingerprint


def test_the_natural_labels_are_the_labels_given():
    natural = np.random.default_rng(1).integers(0, 5, 600)
    aggregated = np.random.default_rng(2).integers(0, 5, 600)
    dataset = toy(given={"worse": natural, "aggre": aggregated})
    scenario = draw_scenario(dataset, "dir-0.5", "real", 10)
    assert np.array_equal(scenario.given, natural)
    assert np.array_equal(scenario.true, dataset.train_y)
    assert scenario.overall == pytest.approx((natural != dataset.train_y).mean())
    assert set(scenario.kinds) == {"real"}
    assert np.isnan(scenario.nominal).all()
    assert np.array_equal(draw_scenario(dataset, "iid", "real-aggre", 10).given, aggregated)
    assert np.array_equal(draw_scenario(dataset, "iid", "clean", 10).given, dataset.train_y)


def test_an_unknown_set_of_natural_labels_names_the_nearest():
    dataset = toy(given={"worse": toy().train_y})
    with pytest.raises(BadInput, match=r"'worst' in setting 'real-worst' of toy; did you mean 'worse'\?"):
        draw_scenario(dataset, "iid", "real-worst", 10)


def test_settings_that_the_data_cannot_have_are_refused(dataset):
    with pytest.raises(BadInput, match="toy has no natural noisy labels"):
        draw_scenario(dataset, "iid", "real", 10)
    with pytest.raises(BadInput, match="toy has no superclasses"):
        draw_scenario(dataset, "iid", "asym-super-1.0", 10)


def test_superclass_noise_follows_the_superclass_map():
    dataset = toy(superclass=np.array([1, 0, 4, 2, 3]))
    scenario = draw_scenario(dataset, "iid", "asym-super-1.0", 10)
    wrong = scenario.wrong
    assert wrong.any()
    assert np.array_equal(scenario.given[wrong], dataset.superclass[scenario.true[wrong]])


def test_data_without_known_truth_take_only_their_own_labels():
    base = toy()
    dataset = toy(given={"noisy": base.train_y}, truth_known=False)
    scenario = draw_scenario(dataset, "iid", "real", 10)
    assert not scenario.truth_known
    assert scenario_summary(scenario)["realised"] is None
    with pytest.raises(BadInput, match="needs true labels"):
        draw_scenario(dataset, "iid", "sym-1.0", 10)


def test_the_description_has_a_row_for_each_client(dataset):
    scenario = draw_scenario(dataset, "shard-2", "sym-0.5", 10)
    rows = client_table(scenario)
    assert [row["client"] for row in rows] == list(range(10))
    assert {row["classes"] for row in rows} == {2}
    assert sum(row["size"] for row in rows) == scenario_summary(scenario)["images"] == 600
    assert scenario_summary(scenario)["noisy_clients"] == 5


@pytest.mark.parametrize("ending", ["", ".npz", ".json"])
def test_a_saved_scenario_comes_back_equal(dataset, tmp_path, ending):
    scenario = draw_scenario(dataset, "dir-0.5", "sym-1.0", 10, seed=42, samples=500)
    files = save_scenario(scenario, tmp_path / "new" / f"toy-sym-1.0{ending}")
    assert [file.name for file in files] == ["toy-sym-1.0.npz", "toy-sym-1.0.json"]
    assert sorted(file.name for file in files[0].parent.iterdir()) == ["toy-sym-1.0.json", "toy-sym-1.0.npz"]
    loaded = load_scenario(tmp_path / "new" / f"toy-sym-1.0{ending}")
    assert same_clients(scenario, loaded)
    assert client_table(loaded) == client_table(scenario)
    assert scenario_summary(loaded) == scenario_summary(scenario)
    assert (loaded.samples, loaded.dataset_digest) == (500, dataset.digest)
    check_dataset(loaded, dataset)


def test_an_export_has_the_noise_of_every_client(dataset, tmp_path):
    scenario = draw_scenario(dataset, "iid", "mixed-0.5", 10)
    npz, _ = save_scenario(scenario, tmp_path / "s")
    with np.load(npz) as arrays:
        assert arrays["kinds"].tolist() == list(scenario.kinds)
        np.testing.assert_array_equal(arrays["nominal"], scenario.nominal)
        np.testing.assert_array_equal(arrays["transitions"], scenario.transitions)


def test_an_export_without_known_truth_has_no_transitions(tmp_path):
    scenario = draw_scenario(toy(given={"noisy": toy().train_y}, truth_known=False), "iid", "real", 10)
    npz, _ = save_scenario(scenario, tmp_path / "s")
    with np.load(npz) as arrays:
        assert "transitions" not in arrays
    assert load_scenario(npz).fingerprint == scenario.fingerprint


def test_natural_noise_survives_the_file(tmp_path):
    scenario = draw_scenario(toy(given={"noisy": toy().test_y.repeat(12)}), "iid", "real", 10)
    save_scenario(scenario, tmp_path / "natural")
    assert load_scenario(tmp_path / "natural").fingerprint == scenario.fingerprint


def test_other_data_are_refused(dataset):
    scenario = draw_scenario(dataset, clients=10)
    with pytest.raises(BadInput, match=r"was made for toy .* not for this toy"):
        check_dataset(scenario, toy(total=500))


@pytest.fixture
def saved(dataset, tmp_path):
    save_scenario(draw_scenario(dataset, clients=10), tmp_path / "s")
    return tmp_path / "s"


def rewrite(path, **changes):
    with np.load(path) as file:
        arrays = {**file, **changes}
    np.savez(path, **arrays)


def test_a_torn_file_is_named(saved):
    npz = saved.with_suffix(".npz")
    npz.write_bytes(npz.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"s\.npz is not a readable \.npz file"):
        load_scenario(saved)


def test_a_cut_table_is_named(saved):
    table = saved.with_suffix(".json")
    table.write_text(table.read_text()[:40])
    with pytest.raises(BadInput, match=r"s\.json is not a whole scenario"):
        load_scenario(saved)


def test_a_missing_half_is_named(saved):
    saved.with_suffix(".json").unlink()
    with pytest.raises(BadInput, match=r"no scenario file .*s\.json"):
        load_scenario(saved)


def test_a_foreign_file_is_named(saved):
    np.savez(saved.with_suffix(".npz"), x=np.arange(3))
    with pytest.raises(BadInput, match="lacks the array clients, sizes, given"):
        load_scenario(saved)


def test_a_changed_label_is_noticed(saved, dataset):
    rewrite(saved.with_suffix(".npz"), given=dataset.train_y)
    with pytest.raises(BadInput, match="was changed: its content does not have the fingerprint"):
        load_scenario(saved)


def test_changed_transitions_are_noticed(saved):
    rewrite(saved.with_suffix(".npz"), transitions=np.zeros((10, 5, 5), dtype=int))
    with pytest.raises(BadInput, match="transitions are not those of its labels"):
        load_scenario(saved)


def test_sizes_that_do_not_fit_are_noticed(saved):
    rewrite(saved.with_suffix(".npz"), sizes=np.array([3]))
    with pytest.raises(BadInput, match="sizes of the clients do not fit"):
        load_scenario(saved)


def test_a_changed_name_is_noticed(saved):
    table = saved.with_suffix(".json")
    content = json.loads(table.read_text())
    content["about"]["setting"] = "clean"
    table.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="do not belong together"):
        load_scenario(saved)


def test_a_folder_that_cannot_be_written_is_bad_input(dataset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write the scenario"):
        save_scenario(draw_scenario(dataset, clients=10), tmp_path / "file" / "s")
