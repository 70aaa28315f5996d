"""Data sets that are arrays: digits, CIFAR with and without human labels, and one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from flnl_bench.data import DATASETS, data_root, downloads, load_dataset
from flnl_bench.data.downloads import (
    CIFAR10_CLASSES,
    CIFAR100_ASYMMETRIC,
    CIFAR100_ASYMMETRIC_SUPER,
    CIFAR100_CLASSES,
    read_table,
)
from flnl_bench.errors import BadInput, MissingData


def cifar_arrays(classes: int = 10, train: int = 40, test: int = 20) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train_x": rng.integers(0, 256, (train, 32, 32, 3), dtype=np.uint8),
        "train_y": np.arange(train) % classes,
        "test_x": rng.integers(0, 256, (test, 32, 32, 3), dtype=np.uint8),
        "test_y": np.arange(test) % classes,
    }


@pytest.fixture
def root(tmp_path, few_images):
    """A data folder with a small cifar10.npz."""
    few_images(40, 20)
    np.savez(tmp_path / "cifar10.npz", **cifar_arrays())
    return tmp_path


def test_names_are_known_without_the_heavy_libraries():
    code = (
        "import sys, flnl_bench.data, flnl_bench.scenario; "
        "print([m for m in ('torch', 'torchvision', 'sklearn', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_digits_are_there_without_a_download():
    digits = load_dataset("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.train_x.dtype == np.uint8
    assert digits.train_x.max() == 255
    assert digits.train_y.dtype == np.int64
    shares = np.bincount(digits.test_y) / (np.bincount(digits.test_y) + np.bincount(digits.train_y))
    assert shares == pytest.approx(np.full(10, 0.2), abs=0.005)
    assert digits.mean[0] == pytest.approx(float((digits.train_x / 255).mean()))
    assert digits.std[0] == pytest.approx(float((digits.train_x / 255).std()))
    assert digits.digest == load_dataset("digits").digest
    assert digits.asymmetric.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_the_data_folder_is_the_argument_else_the_variable_else_the_cache(monkeypatch):
    monkeypatch.setenv("FLNL_DATA", "/from/variable")
    assert str(data_root("/from/argument")) == "/from/argument"
    assert str(data_root()) == "/from/variable"
    monkeypatch.delenv("FLNL_DATA")
    assert "flnl-bench" in str(data_root())


def test_an_unknown_data_set_names_the_nearest():
    with pytest.raises(BadInput, match="unknown data set 'cifar-10'; did you mean 'cifar10'"):
        load_dataset("cifar-10")
    assert "digits" in DATASETS


def test_an_npz_in_the_data_folder_is_used_directly(root):
    cifar = load_dataset("cifar10", root)
    arrays = cifar_arrays()
    assert np.array_equal(cifar.train_x, arrays["train_x"].transpose(0, 3, 1, 2))
    assert np.array_equal(cifar.test_y, arrays["test_y"])
    assert cifar.mean == (0.4914, 0.4822, 0.4465)
    moves = {CIFAR10_CLASSES[i]: CIFAR10_CLASSES[j] for i, j in enumerate(cifar.asymmetric) if i != j}
    assert moves == {"truck": "automobile", "bird": "airplane", "cat": "dog", "dog": "cat", "deer": "horse"}


def test_another_data_set_under_the_name_of_cifar_is_refused(root):
    arrays = cifar_arrays()
    np.savez(root / "cifar10.npz", **{**arrays, "train_x": arrays["train_x"][:, :28, :28]})
    with pytest.raises(BadInput, match="is not cifar10: images must be"):
        load_dataset("cifar10", root)


def test_a_part_of_cifar_under_its_name_is_refused(root, few_images):
    few_images(50_000, 10_000)
    with pytest.raises(BadInput, match=r"not cifar10, which has 50000 train .* not 40 train and 20 test"):
        load_dataset("cifar10", root)


@pytest.mark.parametrize("part", ["train_x", "test_y"])
def test_other_content_under_the_name_of_cifar_is_refused(root, monkeypatch, part):
    digest = load_dataset("cifar10", root).digest
    np.savez(root / "cifar10n_labels.npz", **human_labels())
    for name in ("cifar10", "cifar10n"):
        monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], digest=digest))
        assert load_dataset(name, root).true_digest == digest
    arrays = cifar_arrays()
    arrays[part][:2] = arrays[part][1::-1]
    np.savez(root / "cifar10.npz", **arrays)
    for name in ("cifar10", "cifar10n"):
        with pytest.raises(BadInput, match=f"are not {name}: their digest is .*npz:FILE"):
            load_dataset(name, root)


def test_cifar100_errors_stay_in_groups_of_five():
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)
    assert len(set(CIFAR100_CLASSES)) == 100
    for target in (CIFAR100_ASYMMETRIC, CIFAR100_ASYMMETRIC_SUPER):
        walk = np.arange(100)
        for step in range(1, 6):
            walk = target[walk]
            assert np.array_equal(walk, np.arange(100)) == (step == 5)
    assert CIFAR100_ASYMMETRIC[4] == 0
    assert CIFAR100_CLASSES[CIFAR100_ASYMMETRIC_SUPER[CIFAR100_CLASSES.index("whale")]] == "beaver"
    assert CIFAR100_CLASSES[CIFAR100_ASYMMETRIC_SUPER[CIFAR100_CLASSES.index("maple_tree")]] == "oak_tree"


def test_missing_data_say_where_they_were_looked_for_and_nothing_else(tmp_path, monkeypatch, capsys):
    def offline(url, timeout):
        print("chatter of the library")
        raise OSError("no network\nat all")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(MissingData) as error:
        load_dataset("svhn", tmp_path)
    message = str(error.value)
    assert "svhn.npz" in message
    assert str(tmp_path) in message
    assert "(OSError: no network)" in message
    assert "FLNL_DATA" in message
    assert "\n" not in message
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"downloading svhn to {tmp_path} …\n"


def test_a_download_is_tried_only_if_the_files_are_not_there(tmp_path, monkeypatch, few_images):
    few_images(40, 20)
    monkeypatch.setattr(downloads, "SOURCES", {"CIFAR10": downloads.DownloadSource("https://nowhere/", {})})
    asked = []

    def fetch(kind, root, *, download):
        asked.append(download)
        if not download:
            raise RuntimeError("not found or corrupted")
        return cifar_arrays()

    monkeypatch.setattr(downloads, "fetch", fetch)
    assert len(load_dataset("cifar10", tmp_path).train_y) == 40
    assert asked == [False, True]


class Answer(io.BytesIO):
    url = "https://nowhere/file"


@pytest.mark.parametrize(
    ("url", "content", "says"),
    [
        ("https://nowhere/file", b"right", None),
        ("https://nowhere/file", b"wrong", "the MD5 of https://nowhere/file is 2bda2998d9b0"),
        ("http://nowhere/file", b"right", "leads to http://nowhere/file, which is not https"),
    ],
)
def test_a_download_comes_over_tls_and_is_checked(tmp_path, monkeypatch, url, content, says):
    answer = Answer(content)
    answer.url = url
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: answer)
    right = hashlib.md5(b"right").hexdigest()
    refused = pytest.raises(OSError, match=says) if says else contextlib.nullcontext()
    with refused:
        downloads.retrieve("https://nowhere/file", tmp_path / "new" / "file", right)
        assert (tmp_path / "new" / "file").read_bytes() == b"right"


def test_the_sources_are_those_of_torchvision_over_tls(tmp_path):
    from torchvision import datasets

    def theirs(name):
        kind = getattr(datasets, name)
        if name == "SVHN":
            return {file: md5 for _, file, md5 in (kind.split_list["train"], kind.split_list["test"])}
        return dict(getattr(kind, "resources", None) or [(kind.filename, kind.tgz_md5)])

    for name, source in downloads.SOURCES.items():
        assert source.files == theirs(name)
        assert source.url.startswith("https://")
        assert source.folder == (f"{name}/raw" if "MNIST" in name else ".")
    assert {facts.torchvision for facts in downloads.TORCHVISION.values()} == {*downloads.SOURCES}


HUMAN = ("aggre", "worse", "random1", "random2", "random3")


def human_labels(**changes) -> dict[str, np.ndarray]:
    labels = {name: (np.arange(40) + i + 1) % 10 for i, name in enumerate(HUMAN)}
    return {"clean": np.arange(40) % 10, **labels, **changes}


def test_human_labels_come_with_the_images(root):
    np.savez(root / "cifar10n_labels.npz", **human_labels())
    data = load_dataset("cifar10n", root)
    assert set(data.given) == set(HUMAN)
    assert np.array_equal(data.given["worse"], (np.arange(40) + 2) % 10)
    assert np.array_equal(data.train_y, np.arange(40) % 10)
    assert data.digest != load_dataset("cifar10", root).digest


def test_human_labels_in_another_order_are_refused(root):
    np.savez(root / "cifar10n_labels.npz", **human_labels(clean=np.arange(40)[::-1] % 10))
    with pytest.raises(BadInput, match="order of the labels does not match the images"):
        load_dataset("cifar10n", root)


def test_human_labels_that_are_not_there_are_missing_data(root):
    with pytest.raises(MissingData, match=r"cifar10n_labels\.npz and CIFAR-10_human\.pt .*github\.com"):
        load_dataset("cifar10n", root)


def published(**changes) -> dict[str, np.ndarray]:
    labels = human_labels(**changes)
    return {
        name.replace("random", "random_label") if name[-1].isdigit() else f"{name}_label": labels[name]
        for name in labels
    }


def older_numpy(file) -> None:
    """Rewrite a torch file so that its arrays name the modules of NumPy 1, as the published ones do."""
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content.replace(b"numpy._core.", b"numpy.core."))


@pytest.mark.parametrize("rewrite", [lambda file: None, older_numpy])
def test_the_published_label_file_is_read(root, rewrite):
    import torch

    torch.save(published(), root / "CIFAR-10_human.pt")
    rewrite(root / "CIFAR-10_human.pt")
    data = load_dataset("cifar10n", root)
    assert np.array_equal(data.given["random3"], human_labels()["random3"])


class Harmful:
    def __reduce__(self):
        return (print, ("this ran",))


def test_a_label_file_cannot_run_code(root, capsys):
    import torch

    torch.save({**published(), "extra": Harmful()}, root / "CIFAR-10_human.pt")
    with pytest.raises(BadInput, match=r"CIFAR-10_human\.pt is not a readable label file"):
        load_dataset("cifar10n", root)
    assert capsys.readouterr().out == ""


def own_arrays(**changes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "train_x": rng.integers(0, 256, (30, 16, 16), dtype=np.uint8),
        "train_y": np.arange(30) % 3,
        "test_x": rng.integers(0, 256, (9, 16, 16), dtype=np.uint8),
        "test_y": np.arange(9) % 3,
    }
    return {key: value for key, value in {**arrays, **changes}.items() if value is not None}


def own(tmp_path, **changes):
    np.savez(tmp_path / "own.npz", **own_arrays(**changes))
    return load_dataset(f"npz:{tmp_path / 'own.npz'}")


@pytest.mark.parametrize("layout", [(16, 16), (16, 16, 1), (1, 16, 16), (16, 16, 3), (3, 16, 16)])
def test_own_arrays_of_every_layout_are_read(tmp_path, layout):
    images = np.random.default_rng(0).integers(0, 256, (39, *layout), dtype=np.uint8)
    data = own(tmp_path, train_x=images[:30], test_x=images[30:])
    channels = 3 if 3 in layout else 1
    assert data.train_x.shape == (30, channels, 16, 16)
    assert data.augmentation.colour == (channels == 3)
    assert data.classes == ("0", "1", "2")
    last = images.reshape(39, 16, 16, channels) if layout[0] == 16 else images.transpose(0, 2, 3, 1)
    assert np.array_equal(data.train_x.transpose(0, 2, 3, 1), last[:30])


@pytest.mark.parametrize("key", ["given", "noisy_y"])
def test_own_noisy_labels_and_class_names_are_read(tmp_path, key):
    data = own(tmp_path, **{key: np.ones(30, np.uint8)}, classes=np.array(["a", "b", "c"]))
    assert data.given["noisy"].tolist() == [1] * 30
    assert data.classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"test_y": None}, r"own\.npz lacks the array test_y"),
        ({"train_x": np.zeros((30, 16, 16))}, r"own\.npz: train_x must be uint8 .* not float64"),
        ({"train_x": np.zeros((30, 16), np.uint8)}, r"train_x must be N×H×W"),
        (
            {"train_x": np.zeros((30, 16, 12), np.uint8)},
            "train_x must hold at least one image, all of them square",
        ),
        ({"train_x": np.zeros((30, 8, 8), np.uint8)}, "train_x and test_x differ in shape"),
        (
            {"train_y": np.zeros(29, int)},
            r"train_y must hold one label for each of the 30 images, not \(29,\)",
        ),
        ({"train_y": np.zeros(30)}, "train_y must be integers, not float64"),
        ({"train_y": np.arange(30) - 1}, "train_y has the label -1; allowed: 0 or more"),
        ({"test_y": np.full(9, 3)}, "test_y has the label 3; allowed: 0 to 2"),
        ({"noisy_y": np.full(30, 7)}, "noisy_y has the label 7; allowed: 0 to 2"),
        ({"train_y": np.zeros(30, int), "test_y": np.zeros(9, int)}, "has one class; at least two"),
        ({"train_y": np.array([{}] * 30)}, r"own\.npz is not a readable \.npz file"),
        ({"classes": np.array([1, 2, 3])}, "classes must be a list of strings"),
    ],
)
def test_faults_of_own_arrays_are_named_with_file_and_key(tmp_path, changes, says):
    with pytest.raises(BadInput, match=says):
        own(tmp_path, **changes)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"text", pickle.dumps([1])])
def test_an_unreadable_file_is_named(root, content):
    (root / "cifar10.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"cifar10\.npz is not a readable \.npz file"):
        load_dataset("cifar10", root)


def test_a_cut_file_is_named(root):
    file = root / "cifar10.npz"
    content = bytearray(file.read_bytes())
    content[1000:1100] = bytes(100)
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"cifar10\.npz is not a readable \.npz file"):
        load_dataset("cifar10", root)


@pytest.mark.parametrize("name", ["npz:nowhere.npz", "folder:nowhere"])
def test_own_data_that_are_not_there_are_missing_data(name):
    with pytest.raises(MissingData, match="nowhere"):
        load_dataset(name)


@pytest.mark.parametrize("name", ["npz:", "folder:"])
def test_a_door_without_a_path_is_bad_input(name):
    with pytest.raises(BadInput, match="needs a path"):
        load_dataset(name)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits as embedded

    pixels, labels = read_table()
    theirs = embedded()
    np.testing.assert_array_equal(pixels, theirs.data)
    np.testing.assert_array_equal(labels, theirs.target)


def test_digits_are_read_without_scikit_learn():
    code = "import sys; from flnl_bench.data import load_dataset; load_dataset('digits'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "sklearn" not in modules.split()
