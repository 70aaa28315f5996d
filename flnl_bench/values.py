"""Values of options and hyper-parameters: which mean the same, and how they are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def key_of(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Values as a key: equal if they mean the same, so 1 is 1.0."""
    return tuple(sorted((name, repr(whole(value))) for name, value in values.items()))


def whole(value: object) -> object:
    """A float without a fraction as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def written(values: Mapping[str, Any]) -> str:
    """Values for people, as they would be given to --set."""
    return ", ".join(f"{name}={whole(value)}" for name, value in values.items())
