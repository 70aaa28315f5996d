"""How methods are shown is declared, and read without importing them."""

import math
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from flnl_bench import plots, plugin_files, registry
from flnl_bench.leaderboards.comparability import method_key
from flnl_bench.methods import Declaration, declaration, declarations, default_methods

METHOD = """
raise SystemExit("nobody imports this")

class Mine:
    name = "mine"
    title = "My method"
    colour = "#123456"
    marker = "*"
    place = 3.5
"""


@pytest.fixture
def use(tmp_path, monkeypatch):
    """Puts a plugin file into use for one test."""
    monkeypatch.setenv(plugin_files.VARIABLE, "")

    def use(text, name="mine.py"):
        (tmp_path / name).write_text(text)
        registry.use_plugin_files([tmp_path / name])

    yield use
    registry._installed.cache_clear()


def test_a_pack_declares_title_look_place_and_the_papers_cost():
    fedgr = declaration("fedgr")
    assert (fedgr.title, fedgr.place) == ("FedGR", 10)
    assert fedgr.paper_cost == "2M + 2D; (E+3) F, E B, a mixture"
    assert declaration("fedgr/no-ema").place == math.inf


def test_what_nobody_declares_is_empty():
    assert declaration("unheard-of") == Declaration()


def test_the_classes_of_a_plugin_file_declare_by_attributes_which_are_read_and_not_run(use):
    use(METHOD)
    assert declaration("mine") == Declaration("My method", "#123456", "*", "", 3.5)
    assert plots.look_of("mine")[:2] == ("#123456", "*")
    assert sorted(["mine", "fedcorr", "fedprox"], key=method_key) == ["fedprox", "mine", "fedcorr"]


@pytest.mark.parametrize(
    "line",
    ['colour = "red; x"', 'marker = "$x$"', 'place = "first"', "title = 3", "colour = None", "marker = f()"],
)
def test_a_declaration_that_cannot_be_used_is_left_out(use, line):
    use(f"class Mine:\n    name = 'mine'\n    {line}\n")
    assert declaration("mine") == Declaration()


@pytest.mark.parametrize("text", ["class Mine(:", "x = '\\ud800'\n", "\0"])
def test_a_file_that_cannot_be_read_takes_nothing_down(use, text):
    use(text)
    assert declaration("fedgr").title == "FedGR"


def test_a_plugin_cannot_change_how_a_method_of_the_packs_looks(use):
    use("class Mine:\n    name = 'fedgr'\n    colour = '#ffffff'\n")
    assert declaration("fedgr").colour == "#d55e00"


def test_the_example_of_the_documentation_declares_what_it_says(use):
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
    section = page.split("## How a method is shown")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    use(example)
    look = Declaration("Bootstrapping", "#7a5195", "P", "", 5.5, assumes=("expected-noise",))
    assert declaration("bootstrap") == look
    (table,) = re.findall(r"^```toml\n(.*?)^```", section, re.M | re.S)
    assert set(tomllib.loads(table)["bootstrap/hard"]) < {field.name for field in fields(Declaration)}


def test_reading_declarations_imports_no_method():
    code = "import sys; from flnl_bench.methods import declarations; assert declarations()['fedgr'];"
    code += "assert not {'torch', 'flnl_methods'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_declared_variant_has_a_title():
    assert all(about.title for about in declarations().values())


def test_every_method_of_our_packs_says_what_it_follows_and_how_it_was_checked():
    for name in default_methods().methods:
        about = declaration(name)
        assert about.code, name
        assert about.follows, name
        assert about.checked, name
