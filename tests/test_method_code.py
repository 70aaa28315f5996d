"""Runs know the code of the plugin that made them."""

import importlib.util
import sys

import pytest
from command_line import flnl, interrupted, rounds_of, tiny

from flnl_bench.registry import default_registry

PLUGIN = """
from flnl_bench import Method

class Mine(Method):
    name = "mine"

    def loss(self, model, batch, client):
        return {} * super().loss(model, batch, client)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes a plugin of one method and makes it known, in place of what was there."""
    monkeypatch.setattr(default_registry(), "methods", dict(default_registry().methods))

    def write(text):
        file = tmp_path / "mine.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("mine", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "mine", module)
        spec.loader.exec_module(module)
        default_registry().methods["mine"] = module.Mine

    return write


def warned(done):
    return any("the code of mine has changed" in line and "--fresh" in line for line in done.errors)


def test_a_finished_run_of_other_code_is_found_with_a_warning_and_played_anew_on_demand(tmp_path, install):
    command = tiny(tmp_path, "--json", method="mine")
    install(PLUGIN.format(1))
    made = flnl(*command)
    before = rounds_of(made.json["run_dir"])
    assert not warned(flnl(*command))
    install(PLUGIN.format(20))
    found = flnl(*command)
    assert warned(found)
    assert found.json == made.json
    assert not warned(flnl(*command, "--fresh"))
    assert rounds_of(made.json["run_dir"]) != before
    assert not warned(flnl(*command))


def test_a_run_that_went_on_with_other_code_keeps_its_warning(tmp_path, install, monkeypatch):
    command = tiny(tmp_path, "--json", method="mine")
    install(PLUGIN.format(1))
    interrupted(2, *command, monkeypatch=monkeypatch)
    install(PLUGIN.format(20))
    assert warned(flnl(*command))
    assert warned(flnl(*command))  # found finished, its first rounds are of the old code
