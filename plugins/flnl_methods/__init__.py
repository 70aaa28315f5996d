"""FedGR and its baselines, written against the public API of flnl_bench only."""

from __future__ import annotations

from flnl_bench import Method, hookimpl
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedcorr import FedCorr
from flnl_methods.feddiv import FedDiv
from flnl_methods.fedfixer import FedFixer
from flnl_methods.fedgr import FedGR
from flnl_methods.fednoro import FedNoRo
from flnl_methods.fedprox import FedProx
from flnl_methods.fl_coteaching import FLCoteaching
from flnl_methods.fl_dividemix import FLDivideMix


@hookimpl
def flnl_register_methods() -> list[type[Method]]:
    """The methods of this package."""
    return [FedAvg, FedProx, FedGR, FLDivideMix, FLCoteaching, FedFixer, FedDiv, FedCorr, FedNoRo]
