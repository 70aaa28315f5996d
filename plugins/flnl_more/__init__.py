"""More methods of the field, written against the public API of flnl_bench only."""

from __future__ import annotations

from flnl_bench import Method, hookimpl


@hookimpl
def flnl_register_methods() -> list[type[Method]]:
    """The methods of this package."""
    return []
