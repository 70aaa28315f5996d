"""The digest of a data set covers every byte, and that of large images is kept until their files change."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

import flnl_bench as fb
from flnl_bench.data import image_digest, load_dataset
from flnl_bench.data.image_digest import hash_images
from flnl_bench.testing import toy_dataset


def arrays(**changes):
    rng = np.random.default_rng(0)
    content = {
        "train_x": rng.integers(0, 256, (300, 8, 8), dtype=np.uint8),
        "train_y": np.arange(300) % 3,
        "test_x": rng.integers(0, 256, (150, 8, 8), dtype=np.uint8),
        "test_y": np.arange(150) % 3,
        "noisy_y": (np.arange(300) + 1) % 3,
    }
    return {**content, **changes}


@pytest.fixture
def save(tmp_path):
    """Writes a data set as npz and gives its name; a number of another array, if asked, is changed by one."""

    def save(part=None, place=None):
        content = arrays()
        if part:
            content[part][place] = (content[part][place] + 1) % 3
        np.savez(tmp_path / "mine.npz", **content)
        return f"npz:{tmp_path / 'mine.npz'}"

    return save


# Of the 300 and 150 images, a sample of 64 would miss these.
@pytest.mark.parametrize(
    ("part", "place"),
    [("train_x", (299, 7, 7)), ("test_x", (149, 7, 7)), ("train_y", 1), ("test_y", 1), ("noisy_y", 1)],
)
def test_one_changed_number_of_a_data_set_is_another_data_set(save, part, place):
    before = load_dataset(save()).digest
    assert load_dataset(save(part, place)).digest != before
    assert load_dataset(save()).digest == before


@pytest.mark.parametrize("place", [(0, 0, 0), (7, 3, 3), (299, 7, 7)])
def test_a_scenario_of_data_with_one_changed_pixel_has_another_fingerprint(save, place):
    before = fb.make_scenario(save(), "iid", "sym-1.0", clients=4)
    after = fb.make_scenario(save("train_x", place), "iid", "sym-1.0", clients=4)
    assert all(map(np.array_equal, before.clients, after.clients))
    assert np.array_equal(before.given, after.given)
    assert before.fingerprint != after.fingerprint


def test_the_fingerprint_of_a_scenario_with_open_set_noise_sees_each_pixel_of_the_pool(save):
    noise = f"open-1.0,pool={save()}"
    before = fb.make_scenario("digits", "iid", noise, clients=4, samples=300).fingerprint
    save("train_x", (299, 7, 7))
    assert fb.make_scenario("digits", "iid", noise, clients=4, samples=300).fingerprint != before


def test_the_same_pixels_in_another_shape_are_other_images():
    images = np.arange(64, dtype=np.uint8).reshape(4, 1, 4, 4)
    assert hash_images([images]) != hash_images([images.reshape(1, 1, 8, 8)])
    assert hash_images([images[:1], images[1:]]) != hash_images([images[:2], images[2:]])


def test_the_layout_in_memory_and_the_size_of_chunks_change_no_digest(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    plain = hash_images([images])
    assert hash_images([np.asfortranarray(images)]) == plain
    monkeypatch.setattr(image_digest, "HASHED_AT_ONCE", 2 * images[0].nbytes)
    assert hash_images([images]) == plain


def test_a_copy_with_other_images_has_its_own_digest(save):
    dataset = load_dataset(save())
    copy = dataclasses.replace(dataset, train_x=dataset.train_x[::-1])
    assert copy.digest != dataset.digest


def test_names_of_classes_do_not_count():
    dataset = toy_dataset()
    renamed = dataclasses.replace(dataset, classes=tuple(f"class {name}" for name in dataset.classes))
    assert renamed.digest == dataset.digest


# -- kept digests ------------------------------------------------------------------------------------
@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder in which the digests of small images are kept too, at once."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.setattr(image_digest, "KEPT_FROM", 0)
    monkeypatch.setattr(image_digest, "SETTLED", 0)
    return tmp_path / "cache"


@pytest.fixture
def hashed(monkeypatch):
    """How many images were hashed, each time."""
    counts = []

    def count(images, progress=None):
        counts.append(sum(map(len, images)))
        return hash_images(images, progress)

    monkeypatch.setattr(image_digest, "hash_images", count)
    return counts


def test_images_of_the_same_files_are_hashed_once(save, cache, hashed):
    name = save()
    reports = []
    first = load_dataset(name, progress=lambda *report: reports.append(report)).digest
    assert load_dataset(name).digest == first
    assert hashed == [450]
    assert reports[-1] == ("hashing the images", 450, 450)


def test_a_file_that_was_written_again_with_its_old_size_and_time_is_hashed_again(save, cache, hashed):
    name = save()
    file = name.partition(":")[2]
    state = os.stat(file)
    before = load_dataset(name).digest
    save("train_x", (299, 7, 7))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (os.stat(file).st_size, os.stat(file).st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert load_dataset(name).digest != before
    assert hashed == [450, 450]


def test_a_file_that_was_just_written_is_hashed_each_time(save, cache, hashed, monkeypatch):
    monkeypatch.setattr(image_digest, "SETTLED", 10**18)
    name = save()
    assert load_dataset(name).digest == load_dataset(name).digest
    assert hashed == [450, 450]


def test_a_file_that_changes_while_it_is_read_is_hashed_and_its_digest_is_not_kept(save, cache, hashed):
    name = save()

    def write_again(what, done, total):
        os.utime(name.partition(":")[2], ns=(1, 1))

    assert load_dataset(name, progress=write_again).digest == load_dataset(name).digest
    assert hashed == [450, 450]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": [], "images": "00"}', None])
def test_a_damaged_file_of_a_kept_digest_is_ignored(save, cache, hashed, text):
    name = save()
    before = load_dataset(name).digest
    (file,) = cache.rglob("*.json")
    file.write_text(text if text is not None else json.dumps({**json.loads(file.read_text()), "images": "0"}))
    assert load_dataset(name).digest == before
    assert hashed == [450, 450]


def test_without_a_writable_cache_folder_the_digest_is_computed_each_time(save, cache, hashed):
    cache.write_text("a file in the place of the folder")
    name = save()
    assert load_dataset(name).digest == load_dataset(name).digest
    assert hashed == [450, 450]


def test_human_labels_share_the_digest_of_their_images(tmp_path, cache, hashed, few_images):
    few_images(40, 40)
    rng, labels = np.random.default_rng(0), np.arange(40) % 10
    images = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar10.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    names = ("clean", "aggre", "worse", "random1", "random2", "random3")
    np.savez(tmp_path / "cifar10n_labels.npz", **dict.fromkeys(names, labels))
    load_dataset("cifar10", tmp_path)
    load_dataset("cifar10n", tmp_path)
    assert hashed == [80]
