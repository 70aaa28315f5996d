"""The pages of docs/: complete, and their examples work."""

import inspect
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer.main
from command_line import flnl, rounds_of, tiny
from test_suite_execution import Inline

from flnl_bench import Method, Update
from flnl_bench.cli import app
from flnl_bench.methods import default_methods
from flnl_bench.testing import CHECKS, run_rounds, toy_engine

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def commands(group=None, before: tuple[str, ...] = ()) -> dict[str, object]:
    """Every command by its full name, as in "scenario show"."""
    found = {}
    for name, command in (group or typer.main.get_command(app)).commands.items():
        words = (*before, name)
        found |= commands(command, words) if hasattr(command, "commands") else {" ".join(words): command}
    return found


COMMANDS = commands()
HOOKS = [name for name, value in vars(Method).items() if inspect.isfunction(value) and name[0] != "_"]
# Lines of code blocks, so that neither prose nor tables count.
BLOCKS = {path: re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.M | re.S) for path in PAGES}
EXAMPLES = [
    pytest.param(found, id=f"{path.stem}: {found}")
    for path, blocks in BLOCKS.items()
    for found in re.findall(r"^(?:\S*/)?flnl-bench (.+)$", "\n".join(blocks), re.M)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_heading_and_an_example(name):
    headings = re.findall(r"^## (.+)$", page("commands.md"), re.M)
    assert name in ", ".join(headings).split(", ")
    assert re.search(rf"^flnl-bench {name}\b", page("commands.md"), re.M)


def test_the_options_of_every_command_have_a_place_on_the_page():
    assert sorted(re.findall(r"<!-- options: (.+?) -->", page("commands.md"))) == sorted(COMMANDS)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented(hook):
    assert f"| `{hook}(" in page("writing-a-method.md")


def test_every_method_has_a_row_with_every_column():
    rows = re.findall(r"^\| `([\w-]+)` \|(.+)\|$", page("methods.md"), re.M)
    assert sorted(name for name, _ in rows) == sorted(default_methods().methods)
    for name, cells in rows:
        assert len([cell for cell in cells.split(" | ") if cell.strip()]) == 5, name


def test_there_are_examples():
    assert len(EXAMPLES) > 15


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_a_command_with_options_that_exist(line):
    words = shlex.split(line, comments=True)
    name = next(name for name in COMMANDS if words[: len(name.split())] == name.split())
    command = COMMANDS[name]
    command.make_context(name, words[len(name.split()) :])  # parses, and does not call


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_linked_file_is_there(path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_snippet_about_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flnl_bench.suite.api.LocalLauncher", Inline)
    names: dict[str, object] = {}
    for snippet in re.findall(r"^```python\n(.*?)^```", page("python.md"), re.M | re.S):
        exec(snippet, names)
    assert len(names["result"].rounds) == 3
    assert len(names["curves"]) == 2 * 2 * 3
    assert names["suite"].counts["done"] == 4
    assert names["scenario"].fingerprint == names["weak"].scenario.fingerprint
    assert set(names["frame"].label) == {"fedavg", "fedgr", "fedgr lambda_b=2"}


TUTORIAL = re.findall(r"^```python\n(.*?)^```", page("writing-a-method.md"), re.M | re.S)


def snippet(word: str) -> str:
    """The one example of the tutorial that has a word in it."""
    (found,) = [text for text in TUTORIAL if word in text]
    return found


def test_the_first_method_of_the_tutorial_runs_from_a_file_and_from_a_hook(tmp_path, monkeypatch):
    names = {}
    exec(snippet('class Bootstrap(Method):\n    "'), names)
    exec(snippet("def flnl_register_methods"), names)
    exec(snippet("parametrize_with_checks"), names)
    assert len(names["test_conformance"].pytestmark[0].args[1]) == len(CHECKS["method"])
    (method,) = names["flnl_register_methods"]()
    (row,) = run_rounds(toy_engine(method(trust=0.9)), rounds=1)
    assert row["train_loss"] > 0
    monkeypatch.setenv("FLNL_PLUGINS", str(tmp_path / "bootstrap.py"))
    (tmp_path / "bootstrap.py").write_text(snippet('class Bootstrap(Method):\n    "'))
    assert flnl(*tiny(tmp_path, "--set", "trust=0.9", method="bootstrap")).code == 0


def test_a_method_may_call_the_default_of_a_hook():
    names = {}
    exec(snippet("class Cautious"), names)
    server = toy_engine(names["Cautious"]()).server
    server.weights = {"w": torch.tensor(1.0)}
    updates = [Update(k, 10, {"w": torch.tensor(value)}, {}) for k, value in enumerate((2.0, 4.0))]
    assert names["Cautious"]().aggregate(server, updates)["w"].item() == 2.0


def test_every_snippet_of_the_tutorial_is_executed():
    names = {}
    for text in TUTORIAL:
        exec(text, names)
    assert names["Bootstrap"].version == 2


def test_the_second_method_of_the_tutorial_trusts_clients_less_that_fit_badly():
    names = {}
    exec(snippet("class Doubt"), names)
    engine = toy_engine(names["Doubt"](), fraction=1.0)
    run_rounds(engine, rounds=2)
    server = engine.server
    weights = [{"w": torch.tensor(value)} for value in (0.0, 1.0)]
    updates = [
        Update(k, 10, w, {"mean_loss": loss})
        for k, (w, loss) in enumerate(zip(weights, (0.0, 1.0), strict=True))
    ]
    assert names["Doubt"]().aggregate(server, updates)["w"].item() == pytest.approx(1 / (1 + math.e))
    beliefs = names["Doubt"]().beliefs(server, 0, engine.federation.states[0])
    assert len(beliefs.clean) == server.sizes[0]
    assert 0 < beliefs.clean.sum() < server.sizes[0]


TOML = {
    re.match(r"# (\S+)", text)[1]: text
    for text in re.findall(r"^```toml\n(.*?)^```", page("commands.md"), re.M | re.S)
}


def test_the_run_file_and_the_preset_of_the_page_work_together(tmp_path):
    for name, text in TOML.items():
        (tmp_path / name).write_text(text)
    small = ["--rounds", 1, "--clients", 4, "--epochs", 1, "--samples", 200, "--out", tmp_path]
    done = flnl("run", tmp_path / "mine.toml", "--seed", 7, *small, "--json").json
    assert (done["method"], done["preset"], done["partition"]) == ("fedprox", "small", "dir-0.3")
    shown = flnl("show", "preset", tmp_path / "small.toml", "--method", "fedprox", "--json").json
    assert (shown["training"]["rounds"], shown["methods"]["fedprox"]["mu"]["value"]) == (10, 0.5)


def test_data_of_one_s_own_are_read_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", page("writing-a-dataset.md"), re.M | re.S)
    (made,) = [text for text in snippets if "savez" in text]
    exec(made, {})
    options = ["--dataset", "npz:mine.npz", "--model", "tiny-cnn", "--out", tmp_path]
    done = flnl(*tiny(tmp_path, *options, "--json", setting="real")).json
    assert len(rounds_of(done["run_dir"])) == 3
