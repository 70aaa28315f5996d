"""Noise, partitions, data sets and models are tables that plugins add to as they add methods."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import flnl

from flnl_bench import (
    BadInput,
    Dataset,
    DatasetKind,
    ModelKind,
    NoiseKind,
    Parameter,
    PartitionKind,
    hookimpl,
    registry,
)
from flnl_bench.cli.listing import LISTS
from flnl_bench.data import DATASETS, dataset_name, find_dataset, load_dataset
from flnl_bench.errors import BrokenContract
from flnl_bench.leaderboards.comparability import setting_key
from flnl_bench.methods import load_methods
from flnl_bench.models import MODELS, find_model, make_network
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import protocol
from flnl_bench.scenario import NOISES, PARTITIONS, draw_scenario, parse_partition, parse_setting


def plugin(**offers):
    """A plugin that returns these entries, by kind."""

    def hook(entries):
        return hookimpl(lambda self: entries)

    hooks = {f"flnl_register_{kind}": hook(entries) for kind, entries in offers.items()}
    for name, function in hooks.items():
        function.__name__ = name
    return type("Plugin", (), hooks)()


@pytest.fixture
def install(monkeypatch):
    """Make these plugins the only ones of this process."""

    def put(**plugins):
        def entry(name, offered):
            def load():
                if isinstance(offered, Exception):
                    raise offered
                return offered

            return SimpleNamespace(
                name=name, value="module", load=load, dist=SimpleNamespace(name=f"flnl-bench-{name}")
            )

        entries = [entry(name, offered) for name, offered in plugins.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: entries)
        found = registry.Plugins()
        monkeypatch.setattr(registry, "installed", lambda: found)
        return found

    return put


def ones(client):
    """Everything becomes class 1."""
    return np.ones_like(client.true)


def shared_class(client):
    """Everything becomes one class that all clients share."""
    return np.full_like(client.true, client.shared_rng("common").integers(client.classes))


def in_order(labels, clients, rng, least):
    return np.array_split(np.arange(len(labels)), clients)


def stripes(root, progress):
    images = np.zeros((40, 8, 8), np.uint8)
    return Dataset.from_arrays("whatever", images, np.arange(40) % 4, images, np.arange(40) % 4)


def flat(channels, norm):
    from torch import nn

    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    backbone.feature_size = 4 * channels
    return backbone


TOY = {
    "noises": [NoiseKind("ones", "all become 1", ones)],
    "partitions": [PartitionKind("ordered", "by their place", in_order)],
    "datasets": [DatasetKind("stripes", "stripes", stripes, train_images=40, model="tiny-cnn")],
    "models": [ModelKind("flat", "no weights", flat)],
}


# -- entries of plugins ------------------------------------------------------------------------------
def test_a_plugin_adds_one_of_each_kind(install):
    install(toy=plugin(**TOY))
    dataset = load_dataset("stripes")
    assert dataset.name == "stripes"
    scenario = draw_scenario(dataset, "ordered", "ones-0.5:0.3-0.4", clients=4)
    assert scenario.setting == "ones-0.5:0.3-0.4"
    assert [rows.tolist() for rows in scenario.clients] == np.arange(40).reshape(4, 10).tolist()
    assert sorted(scenario.kinds) == ["clean", "clean", "ones", "ones"]
    for rows, kind in zip(scenario.clients, scenario.kinds, strict=True):
        expected = np.ones(10) if kind == "ones" else dataset.train_y[rows]
        assert np.array_equal(scenario.given[rows], expected)
    assert make_network("flat", channels=3, classes=7).head.in_features == 12


def test_the_lists_show_what_plugins_add_and_where_it_comes_from(install):
    install(toy=plugin(**TOY))
    for kind, name in (
        ("datasets", "stripes"),
        ("settings", "ones-PHI[:LOW-HIGH]"),
        ("partitions", "ordered"),
        ("models", "flat"),
    ):
        rows = {row["name"]: row for row in LISTS[kind]()}
        assert rows[name]["plugin"] == "toy"
        assert {row["plugin"] for row in rows.values()} == {"toy", "flnl-bench"}


def test_the_list_of_plugins_says_what_each_adds_of_every_kind(install, monkeypatch):
    found = install(toy=plugin(**TOY))
    monkeypatch.setattr("flnl_bench.methods.default_methods", lambda: load_methods(found))
    (row,) = LISTS["plugins"]()
    assert row["description"] == (
        "from flnl-bench-toy ?: datasets stripes; noises ones; partitions ordered; models flat"
    )
    assert (row["methods"], row["noises"], row["models"]) == ([], ["ones"], ["flat"])


def test_a_dataset_of_a_plugin_names_its_network_and_what_the_user_says_wins(install):
    install(toy=plugin(**TOY))
    quick = load_preset("quick")
    assert protocol(quick, "stripes", {}) == quick.training("stripes", model="tiny-cnn")
    assert protocol(quick, "stripes", {"model": "resnet8"}).model == "resnet8"
    assert protocol(quick, "cifar10", {}) == quick.training("cifar10")


def test_the_longest_name_that_fits_counts_also_across_plugins(install):
    pair, worse = (NoiseKind(name, "help", ones) for name in ("sym-pair", "real-worse"))
    install(toy=plugin(noises=[pair, worse]))
    assert parse_setting("sym-pair-0.5").kind is pair
    assert parse_setting("real-worse-0.5").kind is worse
    assert parse_setting("real-worst").rest == "worst"
    assert parse_setting("sym-0.5").kind is NOISES["sym"]
    assert parse_setting("asym-super-0.5").kind is NOISES["asym-super"]


def test_no_plugin_is_loaded_for_built_in_names(install):
    found = install(broken=ImportError("must not be loaded"))
    parse_setting("sym-1.0"), parse_setting("asym-super-1.0"), parse_partition("dir-0.3")
    dataset_name("npz:x@0123456789abcdef"), find_dataset("digits"), find_model("tiny-cnn")
    assert found.loaded == {}
    with pytest.raises(BadInput, match="did you mean 'resnet8'"):
        find_model("resnt8")
    assert found.problems == ["plugin 'broken' (module): ImportError: must not be loaded; skipped"]


def test_parameters_of_a_kind_without_ratios_are_its_own(install):
    install(toy=plugin(noises=[NoiseKind("odd", "help", ones, ratios=None, expected=lambda setting: 0.25)]))
    setting = parse_setting("odd-thing")
    assert (setting.phi, setting.rest, setting.name, setting.expected_ratio) == (
        1.0,
        "thing",
        "odd-thing",
        0.25,
    )
    assert math.isnan(setting.low)


def test_kinds_can_draw_among_others_and_share_a_stream(install):
    mix = NoiseKind("blend", "help", among=("ones", "common", "sym"))
    common = NoiseKind("common", "help", shared_class)
    install(toy=plugin(**{**TOY, "noises": [*TOY["noises"], mix, common]}))
    scenario = draw_scenario(load_dataset("stripes"), "iid", "blend-1.0", clients=20)
    assert set(scenario.kinds) == {"ones", "common", "sym"}
    shared = [scenario.given[rows] for rows, kind in zip(scenario.clients, scenario.kinds, strict=True)
              if kind == "common"]  # fmt: skip
    assert len(np.unique(np.concatenate(shared))) == 1


def test_settings_are_sorted_by_the_table_of_noises():
    names = ["zzz-1.0", "real", "mixed-0.3", "asym-super-1.0", "asym-0.3", "sym-0.3", "mixed-1.0", "clean"]
    assert sorted(names, key=setting_key) == [
        *("clean", "mixed-1.0"),
        *("sym-0.3", "asym-0.3", "asym-super-1.0", "mixed-0.3", "real", "zzz-1.0"),
    ]


# -- broken entries ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "table", "entry", "why"),
    [
        ("noises", NOISES, 5, "5 is not a NoiseKind"),
        (
            "noises",
            NOISES,
            NoiseKind("sym", "help", ones),
            "noise 'sym' is already there (from 'flnl-bench')",
        ),
        (
            "noises",
            NOISES,
            NoiseKind("sym-2", "help", ones),
            "NoiseKind 'sym-2': its name is not lower-case words joined by dashes, "
            "each beginning with a letter",
        ),
        ("noises", NOISES, NoiseKind("x", "", ones), "NoiseKind 'x' has no help line"),
        (
            "noises",
            NOISES,
            NoiseKind("x", "help"),
            "NoiseKind 'x' needs either a function `labels` or kinds `among`",
        ),
        (
            "partitions",
            PARTITIONS,
            PartitionKind("iid", "help", in_order),
            "partition 'iid' is already there (from 'flnl-bench')",
        ),
        (
            "partitions",
            PARTITIONS,
            PartitionKind("x", "help", None),
            "PartitionKind 'x' has no function `split`",
        ),
        ("datasets", DATASETS, DatasetKind("x", "help", 3), "DatasetKind 'x' has no function `load`"),
        (
            "datasets",
            DATASETS,
            DatasetKind("Mine:", "help", stripes),
            "DatasetKind 'Mine:': its name is not lower-case words joined by dashes",
        ),
        (
            "datasets",
            DATASETS,
            DatasetKind("digits", "help", stripes),
            "data set 'digits' is already there (from 'flnl-bench')",
        ),
        ("models", MODELS, ModelKind("x", "help", "y"), "ModelKind 'x' has no function `build`"),
        (
            "models",
            MODELS,
            ModelKind("resnet18", "help", flat),
            "model 'resnet18' is already there (from 'flnl-bench')",
        ),
    ],
)
def test_an_entry_that_cannot_be_used_is_reported_and_the_others_stay(install, kind, table, entry, why):
    found = install(bad=plugin(**{kind: [entry]}), toy=plugin(**TOY))
    full = table.complete()
    assert found.problems == [f"plugin 'bad': {why}; skipped"]
    assert {**full} == {**table, TOY[kind][0].name: TOY[kind][0]}


def test_the_second_plugin_with_a_name_is_skipped(install):
    found = install(first=plugin(**TOY), second=plugin(noises=TOY["noises"]))
    assert NOISES.complete().origin["ones"] == "first"
    assert found.problems == ["plugin 'second': noise 'ones' is already there (from 'first'); skipped"]


@pytest.mark.parametrize("labels", [lambda client: client.true[1:], lambda client: client.true + 0.5])
def test_labels_that_do_not_fit_are_told_with_the_name_of_the_noise(install, labels):
    install(toy=plugin(noises=[NoiseKind("odd", "help", labels)]))
    with pytest.raises(
        BrokenContract, match="noise 'odd': labels must give 10 whole numbers from 0 to 3, not"
    ):
        draw_scenario(stripes(None, None), "iid", "odd-1.0", clients=4)


def test_an_unknown_class_is_told(install):
    install(toy=plugin(noises=[NoiseKind("odd", "help", lambda client: client.true + 3)]))
    with pytest.raises(BrokenContract, match=r"labels must give 10 whole numbers from 0 to 3, not [456]$"):
        draw_scenario(stripes(None, None), "iid", "odd-1.0", clients=4)


@pytest.mark.parametrize(
    ("split", "rule"),
    [
        (lambda labels, clients, *_: [np.arange(40)], "split must give the rows of 4 clients, not 1"),
        (lambda *_: [np.arange(10)] * 4, "split must give every row exactly once, not 10 rows"),
        (
            lambda *_: [np.arange(40), *[np.empty(0, int)] * 3],
            "split must give each client 1 rows, not fewer",
        ),
    ],
)
def test_a_partition_that_loses_rows_or_clients_is_told(install, split, rule):
    install(toy=plugin(partitions=[PartitionKind("odd", "help", split)]))
    with pytest.raises(BrokenContract, match=f"partition 'odd': {rule}"):
        parse_partition("odd").split(np.arange(40) % 4, 4, np.random.default_rng(0))


@pytest.mark.parametrize(("text", "says"), [("odd-2", "from 0.1 to 0.5, not '2'"), ("odd", "not ''")])
def test_the_parameters_of_a_partition_are_checked(install, text, says):
    share = Parameter("SHARE", 0.1, 0.5, example=0.2)
    install(toy=plugin(partitions=[PartitionKind("odd", "help", in_order, (share,))]))
    assert parse_partition("odd-.30").name == "odd-0.3"
    with pytest.raises(BadInput, match=f"SHARE must be a number .*{says}"):
        parse_partition(text)
    with pytest.raises(BadInput, match=r"did you mean 'odd-0.2'\?"):
        parse_partition("ood-0.2")


def crashing(*_):
    raise KeyError("gone")


def test_an_error_inside_an_entry_names_it_and_its_line(install):
    noise, model = NoiseKind("odd", "help", crashing), ModelKind("odd", "help", crashing)
    data = replace(TOY["datasets"][0], name="odd", load=crashing)
    install(toy=plugin(noises=[noise], models=[model], datasets=[data]))
    place = r"KeyError: 'gone' \(test_kinds\.py:\d+ in crashing\)"
    with pytest.raises(BrokenContract, match=f"^noise 'odd': {place}$"):
        draw_scenario(stripes(None, None), "iid", "odd-1.0", clients=4)
    with pytest.raises(BrokenContract, match=f"^model 'odd': {place}$"):
        make_network("odd", channels=1, classes=2)
    with pytest.raises(BrokenContract, match=f"^data set 'odd': {place}$"):
        load_dataset("odd")
    done = flnl("scenario", "show", "--setting", "odd-1.0")
    assert (done.code, len(done.errors)) == (1, 1)
    assert "noise 'odd': KeyError" in done.errors[0]


def test_what_is_no_dataset_and_no_backbone_is_told(install):
    data = DatasetKind("odd", "help", lambda root, progress: [1, 2])
    install(toy=plugin(datasets=[data], models=[ModelKind("odd", "help", lambda channels, norm: "net")]))
    with pytest.raises(BrokenContract, match="data set 'odd': load must give a Dataset, not list"):
        load_dataset("odd")
    with pytest.raises(BrokenContract, match="model 'odd': build must give a module with an integer"):
        make_network("odd", channels=1, classes=2)
