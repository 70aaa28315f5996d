"""Data sets that are read from image files: folders of classes, and Clothing1M."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from flnl_bench.data import load_dataset
from flnl_bench.errors import BadInput, MissingData


def draw(file, value: int, mode: str = "RGB", size: tuple[int, int] = (12, 12)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(file)


def test_a_folder_with_both_parts_is_read(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for i in range(count):
                size = (12, 12) if i == 0 else (20, 30)
                draw(tmp_path / part / name / f"{i}.png", 10 * label + i, size=size)
    data = load_dataset(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog")
    assert data.train_x.shape == (6, 3, 12, 12)
    assert data.train_x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_y.tolist() == [0, 0, 1, 1]


def test_a_folder_of_classes_is_split(tmp_path):
    for name in ("a", "b"):
        for i in range(10):
            draw(tmp_path / name / f"{i}.jpg", 20 * i, mode="L")
    data = load_dataset(f"folder:{tmp_path}")
    assert data.train_x.shape == (16, 1, 12, 12)
    assert np.bincount(data.test_y).tolist() == [2, 2]
    assert data.digest == load_dataset(f"folder:{tmp_path}").digest


def test_faults_of_folders_are_named(tmp_path):
    with pytest.raises(BadInput, match="has no class folders"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with pytest.raises(BadInput, match=r"cat has no images"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "cat" / "1.png").write_text("not an image")
    with pytest.raises(BadInput, match=r"cannot read the image .*1\.png"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "train").mkdir()
    with pytest.raises(BadInput, match=r"only one of train/ and test/"):
        load_dataset(f"folder:{tmp_path}")
    draw(tmp_path / "train" / "a" / "0.png", 0)
    draw(tmp_path / "test" / "b" / "0.png", 0)
    with pytest.raises(BadInput, match="classes that train/ lacks: b"):
        load_dataset(f"folder:{tmp_path}")


@pytest.fixture
def clothing(tmp_path):
    """A data folder with five train and three test images in the published layout."""
    folder = tmp_path / "clothing1m"
    keys = {part: [f"images/{part}/{i}.jpg" for i in range(n)] for part, n in (("train", 5), ("test", 3))}
    for part in keys.values():
        for i, key in enumerate(part):
            draw(folder / key, 40 * i, size=(30, 50))
    (folder / "noisy_train_key_list.txt").write_text("\n".join(keys["train"]) + "\n")
    (folder / "clean_test_key_list.txt").write_text("\n".join(keys["test"]) + "\n")
    (folder / "noisy_label_kv.txt").write_text("".join(f"{k} {i}\n" for i, k in enumerate(keys["train"])))
    (folder / "clean_label_kv.txt").write_text("".join(f"{k} {13 - i}\n" for i, k in enumerate(keys["test"])))
    return tmp_path


def test_clothing1m_is_decoded_once_into_a_memory_map(clothing):
    reports = []
    data = load_dataset("clothing1m", clothing, progress=lambda *report: reports.append(report))
    assert isinstance(data.train_x, np.memmap)
    assert data.train_x.shape == (5, 3, 256, 256)
    assert data.train_x[:, 0, 128, 128] == pytest.approx(np.arange(5) * 40, abs=4)
    assert data.train_y.tolist() == [0, 1, 2, 3, 4]
    assert data.test_y.tolist() == [13, 12, 11]
    assert not data.truth_known
    assert [report[1:] for report in reports] == [(5, 5), (3, 3)]
    for image in clothing.rglob("*.jpg"):
        image.unlink()
    assert load_dataset("clothing1m", clothing).digest == data.digest


def test_a_broken_image_of_clothing1m_is_named_and_leaves_no_half_map(clothing):
    (clothing / "clothing1m" / "images" / "train" / "2.jpg").write_bytes(b"broken")
    with pytest.raises(BadInput, match=r"cannot read the image .*train/2\.jpg"):
        load_dataset("clothing1m", clothing)
    (clothing / "clothing1m" / "images" / "train" / "2.jpg").unlink()
    with pytest.raises(BadInput, match=r"cannot read the image .*train/2\.jpg"):
        load_dataset("clothing1m", clothing)
    assert not [file for file in clothing.rglob("*") if file.suffix in (".npy", ".part")]


def test_lists_of_clothing1m_are_checked(clothing):
    labels = clothing / "clothing1m" / "noisy_label_kv.txt"
    labels.write_text("images/train/0.jpg 14\n")
    with pytest.raises(BadInput, match=r"noisy_label_kv\.txt line 1: expected a path and a label"):
        load_dataset("clothing1m", clothing)
    labels.write_text("images/train/0.jpg 1\n")
    with pytest.raises(BadInput, match=r"has no label for images/train/1\.jpg"):
        load_dataset("clothing1m", clothing)
    labels.unlink()
    with pytest.raises(MissingData, match=r"looked for noisy_label_kv\.txt in .*clothing1m"):
        load_dataset("clothing1m", clothing)
