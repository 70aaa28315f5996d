"""The user's own files: named by file name and content, never by a path."""

from __future__ import annotations

import json
import shutil
import zipfile

import numpy as np
import pytest
from command_line import flnl, tiny
from suite_grids import grid_of

from flnl_bench.data import dataset_name, load_dataset
from flnl_bench.data.own_files import own_name, own_path
from flnl_bench.errors import BadInput, MissingData
from flnl_bench.running.resolve import prepare
from flnl_bench.scenario import parse_setting
from flnl_bench.suite.scheduler import worker_arguments
from flnl_bench.verification import verify


def save(folder, seed=0):
    """Write shapes.npz and T.csv of three classes; another seed gives other images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(seed).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    labels = np.arange(90) % 3
    parts = {"train_x": images[:60], "train_y": labels[:60], "test_x": images[60:], "test_y": labels[60:]}
    np.savez(folder / "shapes.npz", **parts)
    (folder / "T.csv").write_text("0.8,0.1,0.1\n0.1,0.8,0.1\n0.1,0.1,0.8\n")


def run(folder, out, *more, data="shapes.npz", matrix="T.csv"):
    setting = f"matrix-1.0,file={folder / matrix}"
    options = ["--dataset", f"npz:{folder / data}", "--model", "tiny-cnn", "--samples", "50", *more]
    return flnl(*tiny(out, *options, "--json", setting=setting))


@pytest.fixture
def forget(monkeypatch):
    """Forgets where this process has seen files, as another process would."""

    def forget_all():
        monkeypatch.setattr("flnl_bench.data.own_files._places", {})
        monkeypatch.setattr("flnl_bench.running.resolve._latest", {})

    return forget_all


def test_a_moved_file_finds_its_run_and_another_content_is_another_run(tmp_path, forget):
    save(tmp_path / "a")
    first = run(tmp_path / "a", tmp_path / "runs").json
    assert first["dataset"].startswith("npz:shapes.npz@")
    shutil.move(tmp_path / "a", tmp_path / "b" / "deep")
    forget()
    again = run(tmp_path / "b" / "deep", tmp_path / "runs")
    assert again.json["run_dir"] == first["run_dir"]
    assert any("found finished" in line for line in again.errors)
    save(tmp_path / "b" / "deep", seed=1)
    assert run(tmp_path / "b" / "deep", tmp_path / "runs").json["run_dir"] != first["run_dir"]


def test_no_file_of_a_run_or_archive_and_no_table_has_a_path_of_own_data(tmp_path):
    save(tmp_path / "secret")
    assert run(tmp_path / "secret", tmp_path / "runs").code == 0
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "mine.zip").code == 0
    assert flnl("results", "import", tmp_path / "mine.zip", "--out", tmp_path / "theirs").code == 0
    files += [path for path in (tmp_path / "theirs").rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert not [path for path in files if b"secret" in path.read_bytes()]
    with zipfile.ZipFile(tmp_path / "mine.zip") as archive:
        assert "runs.jsonl.xz" in archive.namelist()
    for form in ("latex", "csv", "md", "json"):
        text = flnl("leaderboard", tmp_path / "theirs", "--format", form).out
        assert "shapes.npz" in text
        assert "secret" not in text


def test_a_run_on_own_files_is_verified_wherever_they_lie(tmp_path, forget, monkeypatch):
    from flnl_bench.results.run_record import read_record

    save(tmp_path / "a")
    record = read_record(tmp_path / "runs" / run(tmp_path / "a", tmp_path / "runs").json["run_dir"])
    shutil.move(tmp_path / "a", tmp_path / "b")
    forget()
    assert "no shapes.npz with the digest" in verify(record).findings[-1].text
    assert verify(record, data_dir=tmp_path / "b").status.name == "bit-confirmed"
    forget()
    monkeypatch.chdir(tmp_path / "b")
    assert verify(record).status.name == "bit-confirmed"
    forget()
    save(tmp_path / "b", seed=1)
    assert "only one of another content" in verify(record).findings[-1].text


def test_an_alias_takes_the_place_of_the_file_name(tmp_path):
    save(tmp_path)
    shown = run(tmp_path, tmp_path / "runs", data="shapes.npz@forms", matrix="T.csv@web").json
    assert shown["dataset"] == dataset_name(f"npz:{tmp_path}/shapes.npz").replace("shapes.npz", "forms")
    assert shown["setting"].startswith("matrix-1.0,file=web@")
    assert parse_setting(shown["setting"]).name == shown["setting"]
    strange = tmp_path / "a b@c$.npz"
    shutil.copy(tmp_path / "shapes.npz", strange)
    assert own_name(str(strange)).startswith("a_b_c_.npz@")
    assert own_path(own_name(str(strange))) == strange


def test_a_folder_is_named_by_the_names_and_contents_of_its_files(tmp_path):
    names = set()
    for file, content in (("x/1", "a"), ("x/2", "a"), ("y/1", "a"), ("x/1", "b")):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        (tmp_path / "data" / file).parent.mkdir(parents=True)
        (tmp_path / "data" / file).write_text(content)
        names.add(dataset_name(f"folder:{tmp_path / 'data'}"))
    assert len(names) == 4
    assert all(name.startswith("folder:data@") for name in names)


def test_a_preset_has_a_section_for_own_data_by_their_file_name(tmp_path):
    save(tmp_path / "deep")
    preset = tmp_path / "mine.toml"
    preset.write_text('base = "quick"\n[datasets."npz:shapes.npz"]\nepochs = 1\nmomentum = 0.25\n')
    shown = run(tmp_path / "deep", tmp_path / "runs", "--preset", preset).json
    record = json.loads((tmp_path / "runs" / shown["run_dir"] / "run.json").read_text())
    assert record["config"]["training"]["momentum"] == 0.25


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shapes.npz", "your own data are written npz:shapes.npz"),
        ("deep", "your own data are written folder:deep"),
        ("npz:deep", "not a readable .npz file"),
        ("npz:/dev/null", "there is no file /dev/null"),
        ("npz:~nobody-here/x", "is not a path"),
        ("npz:a\0b", "is not a path|there is no file"),
        (
            "npz:shapes.npz@0123456789abcdef",
            "no shapes.npz with the digest 0123456789abcdef: none in the working folder",
        ),
    ],
)
def test_a_name_that_is_no_file_gives_one_line(tmp_path, monkeypatch, name, says):
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises((BadInput, MissingData), match=says) as error:
        load_dataset(name, tmp_path / "none")
    assert "\n" not in str(error.value)


def test_a_worker_in_another_folder_reads_relative_files(tmp_path, monkeypatch, forget):
    save(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    text = 'settings = ["matrix-1.0,file=T.csv@web"]\ndatasets = ["npz:shapes.npz"]\nmethods = ["fedavg"]\n'
    (planned,) = grid_of(text + "[training]\nclients = 4\nsamples = 50\n", tmp_path)
    arguments = worker_arguments(planned, False)
    forget()
    monkeypatch.chdir(tmp_path)
    assert prepare(arguments[0].options).config == planned.config
