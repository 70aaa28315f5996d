"""The tutorial, the files of examples/ and its notebooks work."""

import re
import shutil
from pathlib import Path

import pytest
from command_line import flnl
from test_suite_execution import Inline

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
SMALL = {"samples = 600": "samples = 200", "rounds = 20": "rounds = 2", "epochs = 5": "epochs = 1"}
FEWER = {"seeds = [1, 13, 42]": "seeds = [1]", '"clean", "sym-1.0", "asym-1.0"': '"sym-1.0"'}


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", TUTORIAL, re.M | re.S)
    return [text for kind, text in found if kind == language]


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of examples/ as the working directory."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLNL_PLUGINS", "")
    return tmp_path


def test_the_tutorial_shows_the_files_of_the_examples():
    assert blocks("python") == [(EXAMPLES / "smoothing.py").read_text()]
    assert blocks("toml") == [(EXAMPLES / "suite.toml").read_text()]


def test_every_step_of_the_tutorial_works(folder, monkeypatch):
    monkeypatch.setattr("flnl_bench.suite.api.LocalLauncher", Inline)
    (folder / "suite.toml").write_text(changed(blocks("toml")[0], SMALL | FEWER))
    small = {"--samples 600": "--samples 200", "--rounds 20": "--rounds 2", "--epochs 5": "--epochs 1"}
    for line in re.findall(r"^flnl-bench (.+)$", "".join(blocks("")), re.M):
        line = changed(line, small) if line.startswith("run ") else line.replace("--jobs 2", "--jobs 1")
        done = flnl(*line.split())
        assert done.code == 0, (line, done.errors)
        if line.startswith("plugin check"):
            assert "flnl-bench run --plugin smoothing.py --method smoothing --setting sym-1.0" in done.out
    assert len(list((folder / "results/runs").rglob("run.json"))) == 4  # that of step 3 is one of them
    assert "moothing" in (folder / "table.tex").read_text()
    for name in ("curves.pdf", "memorization.pdf", "smoothing.zip", "site/index.html"):
        assert (folder / name).stat().st_size > 1000, name


def test_the_noise_of_the_examples_names_one_class_per_client(folder):
    import flnl_bench as fb

    fb.load_plugin(folder / "favourite.py")
    scenario = fb.make_scenario("digits", "iid", "favourite-1.0", clients=4, samples=400)
    for rows in scenario.clients:
        wrong = scenario.given[rows][scenario.given[rows] != scenario.true[rows]]
        assert len(set(wrong.tolist())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "your-method"])
def test_a_notebook_runs(name, folder):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    (folder / "suite.toml").write_text(changed((folder / "suite.toml").read_text(), SMALL | FEWER))
    text = (folder / f"{name}.ipynb").read_text()
    text = text.replace('\\"rounds\\": 20', '\\"rounds\\": 2').replace("== 600", "== 200")
    notebook = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any("text/html" in output.get("data", {}) for output in shown)
