"""More methods of the field, written against the public API of flnl_bench only."""

from __future__ import annotations

from flnl_bench import Method, hookimpl
from flnl_more.fedelc import FedELC
from flnl_more.fedlsr import FedLSR
from flnl_more.fedrn import FedRN
from flnl_more.rofl import RoFL


@hookimpl
def flnl_register_methods() -> list[type[Method]]:
    """The methods of this package."""
    return [
        *(FedRN, FedLSR, RoFL, FedELC),
    ]
