"""Settings with options: how they are written, how bad ones are refused; and every method under them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl

import flnl_bench as fb
from flnl_bench import NoiseKind, Option
from flnl_bench.methods import default_methods
from flnl_bench.scenario import NOISES, draw_scenario, parse_setting
from flnl_bench.scenario.setting import PEOPLE
from flnl_bench.testing import toy_dataset


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("pair-0.60,step=1", "pair-0.6"),
        ("sym-1.0, rates=people, into=local", "sym-1.0,into=local,rates=people"),
        ("pair-0.6,rates=people", "pair-0.6,rates=people"),
        ("sparse-0.8:.4-.4,sparsity=.70,into=global", "sparse-0.8:0.4-0.4"),
        ("pair-1,step=-1", "pair-1.0,step=-1"),
        ("pair-1.0,rates=1+2.50+.5,step=-1", "pair-1.0,step=-1,rates=1.0+2.5+0.5"),
        ("matrix-1.0,file=T.npy@0123456789abcdef", "matrix-1.0,file=T.npy@0123456789abcdef"),
        ("matrix-1.0:.2-.4, file=T.npy@0123456789abcdef", "matrix-1.0:0.2-0.4,file=T.npy@0123456789abcdef"),
        ("inst-1.0:0.2-0.5, scale = 1, centre=true", "inst-1.0:0.2-0.5,scale=1.0,centre=true"),
        ("inst-1.0,scale=255,centre=false,projection=client", "inst-1.0,projection=client"),
        ("pmd-1.0,type=1", "pmd-1.0"),
        ("open-1.0,omega=.50,pool=classes:10+9+dog+9", "open-1.0,pool=classes:9+10+dog,omega=0.5"),
        ("open-0.6,pool=npz:x.npz@0123456789abcdef,omega=1", "open-0.6,pool=npz:x.npz@0123456789abcdef"),
        ("annot-1.0:0.1-0.3,use=random,pool=7", "annot-1.0,pool=7"),
    ],
)
def test_a_setting_with_options_has_one_name(name, canonical):
    setting = parse_setting(name)
    assert setting.name == canonical
    assert parse_setting(canonical) == setting


BAD = {
    "open-1.0": "lacks the option pool, as in open-1.0,pool=… (",
    "matrix-0.5": "lacks the option file, as in matrix-0.5,file=… (",
    "matrix-1.0,file=": "file must be the path of a file, not ''",
    "matrix-1.0,file=nowhere/T.npy": "nowhere/T.npy",
    "pair-1.0,step=2": "step must be 1 or -1, not '2'",
    "pair-1.0,rates=1+2": "rates must be 10 numbers, one per class, not 2",
    "pair-1.0,rates=0+0+0+0+0+0+0+0+0+0": "rates must be numbers, at least one of them above 0, not '0+0+",
    "pair-1.0,rates=1+-2": "rates must be numbers of 0 or more joined by +, or a file, not '1+-2'",
    "pair-1.0,setp=1": "unknown option 'setp' in setting 'pair-1.0,setp=1'; did you mean 'step'?",
    "inst-1.0,scale=-1": "scale must be a number from 0.001 to 1e+06, not '-1'",
    "inst-1.0,scale=1,scale=2": "scale is given twice",
    "pmd-1.0,type=4": "type must be 1 or 2 or 3, not '4'",
    "pmd-1.0,scores=pyproject.toml": "pyproject.toml",
    "matrix-1.0,file=pyproject.toml,into=local": "into=local needs a range of ratios, as in matrix-1.0:0.2",
    "sym-1.0:0.1-0.3,rates=people": "rates=people gives the ratios; leave LOW-HIGH out",
    "inst-1.0,rates=drawn": "rates must be people, not 'drawn'",
    "real,rates=people": "real",
    "annot-1.0,use": "options are written KEY=VALUE, not 'use'",
    "annot-1.0,pool=2": "pool must be a whole number from 3 to 1000, not '2'",
    "annot-1.0,pool=5,rates=own": "a pool draws its own errors and rates; leave these options out",
    "open-1.0,pool=classes:ten": "unknown class 'ten' in setting 'open-1.0,pool=classes:ten'",
    "open-1.0,pool=classes:9,omega=2": "omega must be a number from 0 to 1, not '2'",
    "clean,step=1": "unknown setting 'clean,step=1'",
    "sym-1.0,step=1": "unknown option 'step' in setting 'sym-1.0,step=1' (allowed: alone, into, rates)",
    "iinst-1.0": "did you mean 'inst-1.0'?",
}


@pytest.mark.parametrize("setting", BAD)
def test_a_bad_option_gives_one_line(setting):
    done = flnl("scenario", "show", "--setting", setting, "--clients", 4)
    assert (done.code, len(done.errors)) == (2, 1)
    assert BAD[setting] in done.errors[0]


def test_the_list_shows_kinds_and_options():
    rows = {row["name"]: row for row in flnl("list", "settings", "--json").json["settings"]}
    assert rows["pair-PHI[:LOW-HIGH]"]["options"][0].startswith("step=1: 1 or -1")
    assert rows["open-PHI[:LOW-HIGH],pool=…"]["description"].endswith("ratio 0.2 to 0.4")
    assert rows["clean"]["options"] == []
    assert rows["asym-PHI[:LOW-HIGH]"]["options"][0].startswith("rates=…: people: ")
    assert ",omega=1.0: " in flnl("list", "settings").out


def test_the_page_about_noise_has_every_kind_and_option_and_settings_that_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("T.csv", "eta.npy", "other.npz"):
        Path(name).touch()
    page = (Path(__file__).parents[1] / "docs" / "noise.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    for kind in NOISES.values():
        about = [line for line in lines if f"`{kind.name}`" in line.split("|")[1]]
        assert about or kind.name == "clean", kind.name
        for option in kind.options:
            if option is PEOPLE:  # of every kind with ratios
                continue
            assert any(f"`{option.name}" in line for line in about), option.name
    settings = re.findall(r"--setting (\S+)", page)
    assert {parse_setting(name).kind.name for name in settings} >= {*SETTINGS}


def test_a_kind_of_a_plugin_may_have_options_and_prepare_something(monkeypatch):
    def labels(client):
        return np.full_like(client.true, client.shared + client.options["add"])

    add = Option("add", "0 or 1", int, 0)
    kind = NoiseKind(
        "fixed", "one class", labels, options=(add,), prepare=lambda everyone: everyone.classes - 2
    )
    monkeypatch.setitem(NOISES, "fixed", kind)
    assert set(draw_scenario(toy_dataset(), "iid", "fixed-1.0", 4).given) == {1}
    assert set(draw_scenario(toy_dataset(), "iid", "fixed-1.0,add=1", 4).given) == {2}


# -- methods -----------------------------------------------------------------------------------------
SETTINGS = {
    "pair": "pair-0.7",
    "matrix": "matrix-0.7,file=T.txt",
    "inst": "inst-0.7",
    "pmd": "pmd-0.7",
    "open": "open-0.7,pool=classes:8+9,omega=0.5",
    "annot": "annot-0.7,use=aggre",
    "sparse": "sparse-0.7,rates=drawn,into=local",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a transition matrix."""
    monkeypatch.chdir(tmp_path)
    np.savetxt("T.txt", np.full((10, 10), 0.03) + 0.7 * np.eye(10))


def is_fast(method, kind):
    """Methods see only labels, whatever made them; images of no class are the odd case."""
    ours = default_methods().method_class(method).__module__.startswith("flnl_methods")
    return method == "fedgr" or (kind == "open" and ours)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        pytest.param(method, kind, marks=() if is_fast(method, kind) else pytest.mark.slow)
        for method in default_methods().methods
        for kind in SETTINGS
    ],
)
def test_every_method_runs_two_rounds_under_every_kind_of_noise(method, kind, here):
    small = {"clients": 3, "samples": 60, "rounds": 2, "epochs": 1, "fraction": 0.7, "batch_size": 16}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of methods that two rounds are too few for
        result = fb.run(method, SETTINGS[kind], **small, device="cpu", out="runs")
    assert len(result.rounds) == 2
    assert (result.clients.noise_kind == kind).sum() == 2
    assert ("realised_open" in result.clients) == (kind == "open")
