"""A class that cannot be listed, set or run is skipped when it is registered, with one line that says why."""

import dataclasses
from typing import Annotated, Any, Literal

import pytest

from flnl_bench import BadInput, Method, NotNegative, Positive, Range, Share
from flnl_bench.methods import Methods

KINDS = "int, float, bool, str, Literal[...] or one of them | None"


def declared(annotation: Any = float, default: Any = 1.0, /, **more: Any) -> type[Method]:
    """A method with one hyper-parameter, `rate`."""
    body = {"name": "mine", "rate": default, "__annotations__": {"rate": annotation}, **more}
    return type("Mine", (Method,), body)


def no_default() -> type[Method]:
    class Mine(Method):
        name = "mine"
        rate: float

    return Mine


def refusing(self: Method) -> None:
    raise KeyError("rate")


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (no_default(), "hyper-parameter 'rate' has no default"),
        (declared(version=0), "version is 0, but must be a whole number from 1"),
        (declared(version=True), "version is True, but must be a whole number from 1"),
        (declared(version="2"), "version is '2', but must be a whole number from 1"),
        (
            declared(version=2, __annotations__={"version": int}),
            "version is not a hyper-parameter: write it without a type, as in version = 2",
        ),
        (
            declared(tuple[int, ...], (1, 2)),
            f"hyper-parameter 'rate' is annotated tuple[int, ...], but may be {KINDS}",
        ),
        (
            declared(int | float | None, None),
            f"hyper-parameter 'rate' is annotated int | float | None, but may be {KINDS}",
        ),
        (declared(list, None), f"hyper-parameter 'rate' is annotated list, but may be {KINDS}"),
        (declared("Unheard"), "NameError: name 'Unheard' is not defined"),
        (declared(float, "abc"), "rate is 'abc' in its defaults, but must be float"),
        (declared(float, None), "rate is None in its defaults, but must be float"),
        (declared(int, True), "rate is True in its defaults, but must be int"),
        (
            declared(Literal["a", "b"], "c"),
            "rate is 'c' in its defaults, but must be typing.Literal['a', 'b']",
        ),
        (
            declared(variants={"v": {"rate": "x"}}),
            "rate is 'x' in variant 'v', but must be float",
        ),
        (
            declared(variants={"v": {"rte": 1.0}}),
            "unknown hyper-parameter 'rte' in variant 'v'; did you mean 'rate'? (allowed: rate)",
        ),
        (declared(Annotated[float, Range(2)]), "rate is 1.0, but must be a number from 2"),
        (
            declared(Annotated[str, Range(2)], "a"),
            "hyper-parameter 'rate' has a range, but is str",
        ),
        (
            declared(Share, variants={"v": {"rate": 2.0}}),
            "rate is 2.0, but must be a number from 0 to 1",
        ),
        (declared(variants={"V 1": {}}), "'V 1' is not lower-case words joined by dashes"),
        (declared(name="Bad Name/../x"), "'Bad Name/../x' is not lower-case words joined by dashes"),
        (declared(__post_init__=refusing), "KeyError: 'rate'"),
        (
            declared(agregate=refusing),
            "'agregate' is no hook; did you mean 'aggregate'? If not, rename it",
        ),
        (declared(los=refusing), "'los' is no hook; did you mean 'loss'? If not, rename it"),
    ],
)
def test_a_class_that_cannot_be_used_is_skipped_with_the_reason(cls, why):
    found = Methods()
    found.add("theirs", cls)
    assert found.problems == [f"plugin 'theirs': class Mine: {why}; skipped"]
    assert found.methods == {}


@pytest.mark.parametrize("name", ["losses", "_loss", "loss1", "rounds", "resample", "look", "plan_epoch"])
def test_functions_of_ones_own_may_have_other_names(name):
    found = Methods()
    found.add("theirs", declared(**{name: refusing}))
    assert not found.problems


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (float, 1),
        (Literal["a"] | None, None),
        (int | None, 3),
        (Literal[1, 2], 2),
        (bool, False),
        ("str", ""),
    ],
)
def test_every_kind_that_can_be_set_is_taken(annotation, default):
    found = Methods()
    found.add("theirs", cls := declared(annotation, default, variants={"v-1": {"rate": default}}))
    assert (found.problems, found.methods) == ([], {"mine": cls})
    assert dataclasses.asdict(found.make("mine/v-1", {}, {})) == {"rate": default}


# -- ranges ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("annotation", "allowed", "refused"),
    [
        (Share, (0.0, 1.0), {-0.1: "from 0 to 1", 1.1: "from 0 to 1", float("nan"): "from 0 to 1"}),
        (NotNegative, (0.0, 1e9), {-1e-9: "from 0", float("inf"): "from 0"}),
        (Positive, (1e-9, 5.0), {0.0: "above 0"}),
        (Annotated[float, Range(0, 1, above=True)], (0.5, 1.0), {0.0: "above 0 and at most 1"}),
        (Annotated[int, Range(1)], (1, 7), {0: "from 1"}),
        (Share | None, (None, 0.5), {2.0: "from 0 to 1"}),
    ],
)
def test_a_declared_range_is_checked_whenever_the_method_is_made(annotation, allowed, refused):
    cls = declared(annotation, allowed[-1])
    methods = Methods()
    methods.add("theirs", cls)
    assert not methods.problems
    for value in allowed:
        assert cls(rate=value).rate == value
    for value, told in refused.items():
        with pytest.raises(BadInput, match=f"rate is {value}, but must be a number {told}"):
            cls(rate=value)
        with pytest.raises(BadInput, match=f"must be a number {told}"):
            methods.make("mine", {"rate": value}, {})
        with pytest.raises(BadInput, match=f"must be a number {told}|expected a number"):
            methods.make("mine", {}, {"rate": str(value)})


def test_a_range_is_checked_beside_a_post_init_of_the_methods_own():
    seen = []
    cls = declared(Share, 0.5, __post_init__=lambda self: seen.append(self.rate))
    with pytest.raises(BadInput, match="from 0 to 1"):
        cls(rate=3.0)
    assert seen == [3.0]


def test_a_subclass_that_declares_no_range_has_none():
    class Wider(declared(Share, 0.5)):
        rate: float = 0.5

    assert Wider(rate=3.0).rate == 3.0
