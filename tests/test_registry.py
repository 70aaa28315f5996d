"""Plugins are found, checked and, if they are broken, reported by name and skipped."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Literal

import pytest

from flnl_bench import BadInput, Method, hookimpl, registry
from flnl_bench.methods import (
    Methods,
    default_methods,
    hyperparameters,
    load_methods,
    parse_value,
    values_of,
)


class Mine(Method):
    """A method of a stranger."""

    name = "mine"
    variants = {"soft": {"mode": "soft"}, "none": {"limit": None}}

    rate: float = 0.5
    steps: int = 3
    mode: Literal["hard", "soft"] = "hard"
    limit: float | None = 1.0
    sure: bool = False
    note: str = ""


class Other(Method):
    """Another one."""

    name = "other"


class Entry:
    """An entry point that was not installed."""

    def __init__(self, name, load, value="some_module", dist=None):
        self.name, self.value, self.load = name, value, load
        self.dist = SimpleNamespace(name=dist or f"flnl-bench-{name}")


def plugin(*methods):
    """A plugin module that returns these."""

    class Plugin:
        @hookimpl
        def flnl_register_methods(self):
            return list(methods)

    return Plugin()


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.fixture
def load(monkeypatch):
    """Load the registry from these entry points alone."""

    def load_from(*entries):
        monkeypatch.setattr(registry, "entry_points", lambda group: list(entries))
        return load_methods()

    return load_from


# -- loading -----------------------------------------------------------------------------------------
def test_methods_come_with_their_plugin_and_distribution(load):
    found = load(Entry("a", lambda: plugin(Mine)), Entry("b", lambda: plugin(Other)))
    assert found.methods == {"mine": Mine, "other": Other}
    assert found.origin == {"mine": "a", "other": "b"}
    assert found.plugins == {"a": "flnl-bench-a", "b": "flnl-bench-b"}
    assert found.problems == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("no module named 'jax'\nand more"), "ImportError: no module named 'jax'"),
        (SyntaxError("bad"), "SyntaxError: bad"),
        (RuntimeError(), "RuntimeError"),
        (SystemExit("bye"), "SystemExit: bye"),
    ],
)
def test_a_plugin_that_fails_to_import_is_reported_and_the_others_stay(load, error, said):
    found = load(Entry("broken", raising(error), "broken.module"), Entry("b", lambda: plugin(Other)))
    assert found.problems == [f"plugin 'broken' (broken.module): {said}; skipped"]
    assert found.names() == ["other"]
    assert "broken" not in found.plugins


def test_a_name_that_is_taken_is_reported_with_its_owner(load):
    class Second(Method):
        name = "mine"

    found = load(Entry("a", lambda: plugin(Mine)), Entry("b", lambda: plugin(Second, Other)))
    assert found.problems == ["plugin 'b': method 'mine' is already there (from 'a'); skipped"]
    assert found.methods["mine"] is Mine
    assert found.origin["other"] == "b"


def test_a_plugin_whose_name_is_taken_is_there_beside_the_first(load):
    entries = Entry("a", lambda: plugin(Mine)), Entry("a", lambda: plugin(Other), dist="aaa")
    found = load(*entries)
    assert found.origin == {"mine": "a", "other": "aaa:a"}
    assert found.plugins == {"a": "flnl-bench-a", "aaa:a": "aaa"}
    assert found.problems == []


def test_nobody_takes_a_name_of_this_project(load):
    class Taker(Method):
        name = "mine"

    foreign, own = (
        Entry("a", lambda: plugin(Taker)),
        Entry("methods", lambda: plugin(Mine), dist="flnl-bench"),
    )
    found = load(foreign, own)
    assert found.methods == {"mine": Mine}
    assert found.problems == ["plugin 'a': method 'mine' is already there (from 'methods'); skipped"]


class Undecorated:
    """Forgot @hookimpl."""

    def flnl_register_methods(self):
        return [Mine]


@pytest.mark.parametrize("offer", [Undecorated, plugin])
def test_a_plugin_that_offers_nothing_is_reported(load, offer):
    found = load(Entry("empty", offer), Entry("b", lambda: plugin(Other)))
    assert found.problems == ["plugin 'empty' (some_module) offers nothing (is @hookimpl missing?)"]
    assert found.names() == ["other"]


class Nameless(Method):
    """Forgot its name."""


@pytest.mark.parametrize("thing", [object, Mine(), "fedavg", None, Nameless])
def test_what_is_not_a_named_method_class_is_reported(load, thing):
    found = load(Entry("odd", lambda: plugin(thing, Other)))
    assert found.problems == [f"plugin 'odd': {thing!r} is not a Method class with a name; skipped"]
    assert found.names() == ["other"]


def test_a_hook_that_raises_is_reported(load):
    class Raising:
        @hookimpl
        def flnl_register_methods(self):
            raise ValueError("no licence")

    found = load(Entry("angry", Raising), Entry("b", lambda: plugin(Other)))
    assert found.problems == ["plugin 'angry' (some_module): ValueError: no licence; skipped"]
    assert found.names() == ["other"]


def test_a_hook_that_gives_no_list_is_reported(load):
    class Forgetful:
        @hookimpl
        def flnl_register_methods(self):
            return 5

    found = load(Entry("forgetful", Forgetful), Entry("b", lambda: plugin(Other)))
    assert "'forgetful' (some_module): flnl_register_methods must return a list, not 5" in found.problems[0]
    assert found.names() == ["other"]


def test_a_hook_with_another_name_is_reported_and_harms_nobody_else(load):
    class Misspelt:
        @hookimpl
        def flnl_register_method(self):
            return [Mine]

    found = load(Entry("misspelt", Misspelt), Entry("b", lambda: plugin(Other)))
    (problem,) = found.problems
    assert problem.startswith("plugin 'misspelt' (some_module): PluginValidationError: ")
    assert "'flnl_register_method'" in problem
    assert found.names() == ["other"]


def test_the_methods_of_this_project_come_through_the_same_door():
    from importlib.metadata import entry_points

    assert "flnl_methods" in [entry.value for entry in entry_points(group=registry.GROUP)]


# -- names -------------------------------------------------------------------------------------------
@pytest.fixture
def mine():
    made = Methods()
    made.add("test", Mine)
    made.add("test", Other)
    return made


def test_variants_are_names_too(mine):
    assert mine.names() == ["mine", "mine/soft", "mine/none", "other"]
    assert mine.method_class("mine/soft") is Mine


class Layered(Method):
    """With a variant of its own class."""

    name = "layered"
    variants = {"own": "Deep", "plain": {"depth": 3}}
    depth: int = 1


class Deep(Layered):
    """The variant."""

    variants = {}
    depth: int = 2
    width: float = 0.5

    def views(self):
        """Other images."""
        return ("strong",)


def test_a_variant_may_be_a_class_with_its_own_hooks_and_hyperparameters():
    methods = Methods()
    methods.add("test", Layered)
    assert not methods.problems
    assert methods.names() == ["layered", "layered/own", "layered/plain"]
    assert methods.method_class("layered/own") is Deep
    assert methods.make("layered/own", {"depth": 7}, {"width": "0.25"}) == Deep(depth=2, width=0.25)
    assert methods.variant_values("layered/own") == {"depth": 2, "width": 0.5}
    with pytest.raises(BadInput, match="layered has no such hyper-parameter"):
        methods.make("layered", {}, {"width": "0.25"})


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("Missing", "must be a subclass of Wrong"),
        ("flnl_bench.api:Method", "must be a subclass of Wrong"),
        ("no_such_module:Deep", "No module named 'no_such_module'"),
    ],
)
def test_a_variant_that_is_no_subclass_is_refused(target, reason):
    class Wrong(Method):
        """A method."""

        name = "wrong"
        variants = {"odd": target}

    methods = Methods()
    methods.add("test", Wrong)
    (problem,) = methods.problems
    assert reason in problem


@pytest.mark.parametrize(
    ("name", "near"), [("mien", "mine"), ("othr", "other"), ("mine/sft", "mine/soft"), ("mine/", "mine")]
)
def test_an_unknown_method_or_variant_gets_the_nearest_name(mine, name, near):
    if near is None:  # an empty variant is the method itself
        assert mine.method_class(name) is Mine
        return
    with pytest.raises(BadInput, match=f"unknown method '{name}'; did you mean '{near}'?"):
        mine.make(name, {}, {})


def test_a_variant_of_another_method_is_unknown(mine):
    with pytest.raises(BadInput, match="unknown method 'other/soft'"):
        mine.make("other/soft", {}, {})


# -- values ------------------------------------------------------------------------------------------
def test_the_user_wins_over_the_variant_and_the_variant_over_the_preset(mine):
    preset = {"mode": "hard", "rate": 0.1, "steps": 7}
    made = mine.make("mine/soft", preset, {"rate": "0.9"})
    assert values_of(made) == {
        "rate": 0.9,
        "steps": 7,
        "mode": "soft",
        "limit": 1.0,
        "sure": False,
        "note": "",
    }


def test_an_unknown_key_of_a_preset_is_named(mine):
    with pytest.raises(
        BadInput, match="unknown hyper-parameter of mine 'rte' in the preset; did you mean 'rate'"
    ):
        mine.make("mine", {"rte": 1}, {})


@pytest.mark.parametrize(
    ("method", "key", "said"),
    [
        (
            "mine",
            "stps",
            "--set stps: mine has no such hyper-parameter; did you mean 'steps'? (it has: limit, ",
        ),
        ("mine", "zzz", "--set zzz: mine has no such hyper-parameter (it has: limit, "),
        ("other", "rate", "--set rate: other has no hyper-parameters"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(mine, method, key, said):
    with pytest.raises(BadInput) as caught:
        mine.make(method, {}, {key: "1"})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("rate", "1e-3", 0.001),
        ("steps", "12", 12),
        ("mode", "soft", "soft"),
        ("limit", "none", None),
        ("limit", "0.25", 0.25),
        ("sure", "true", True),
        ("sure", "On", True),
        ("sure", "1", True),
        ("sure", "no", False),
        ("sure", "FALSE", False),
        ("note", "free text", "free text"),
    ],
)
def test_a_value_has_the_declared_type(key, text, value):
    parsed = parse_value(f"--set {key}", text, hyperparameters(Mine)[key])
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("rate", "fast", "--set rate=fast: expected a number"),
        ("steps", "1.5", "--set steps=1.5: expected a whole number"),
        ("steps", "", "--set steps=: expected a whole number"),
        ("mode", "sooft", "unknown value 'sooft' in --set mode; did you mean 'soft'? (allowed: hard, soft)"),
        ("limit", "nil", "--set limit=nil: expected a number"),
        ("sure", "maybe", "--set sure=maybe: expected true or false"),
    ],
)
def test_a_value_of_another_type_is_refused(key, text, said):
    with pytest.raises(BadInput) as caught:
        parse_value(f"--set {key}", text, hyperparameters(Mine)[key])
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("steps must be even\nor so"), "picky: ValueError: steps must be even"),
        (TypeError("no"), "picky: TypeError: no"),
        (AssertionError(), "picky: AssertionError"),
        (BadInput("steps is 3, but must be even"), "steps is 3, but must be even"),
    ],
)
def test_what_a_method_says_about_its_values_is_bad_input(error, said):
    class Picky(Method):
        name = "picky"
        steps: int = 2

        def __post_init__(self):
            if self.steps % 2:
                raise error

    made = Methods()
    made.add("test", Picky)
    with pytest.raises(BadInput) as caught:
        made.make("picky", {}, {"steps": "3"})
    assert str(caught.value) == said


def test_a_literal_of_numbers_gives_a_number():
    assert parse_value("k", "2", Literal[1, 2]) == 2


NUMBERS = [
    (name, field.name)
    for name, cls in sorted(default_methods().methods.items())
    for field in dataclasses.fields(cls)
    if re.search(r"\b(float|int)\b", str(field.type))
    if field.name != "forget_rate"  # checked with what the setting announces, at the start of a run
    if (name, field.name) != ("selfie", "threshold")  # below 0 nothing passes
]


@pytest.mark.parametrize(("method", "field"), NUMBERS)
def test_no_method_takes_a_negative_number(method, field):
    with pytest.raises(BadInput, match=f"^{field} is -1"):
        default_methods().make(method, {}, {field: "-1"})
