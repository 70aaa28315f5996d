"""More methods of the field, written against the public API of flnl_bench only."""

from __future__ import annotations

from flnl_bench import Method, hookimpl
from flnl_more.cores import Cores
from flnl_more.fedelc import FedELC
from flnl_more.fedlsr import FedLSR
from flnl_more.fedrg import FedRG
from flnl_more.fedrn import FedRN
from flnl_more.fedsir import FedSIR
from flnl_more.jointopt import JointOpt
from flnl_more.loss_correction import FedEFC, Forward
from flnl_more.robust_aggregation import RFA, Krum, Median, TrimmedMean
from flnl_more.robust_losses import ELR, GCE, SCE
from flnl_more.robust_losses_reshaped import BiTempered, Focal, MixUp, NCEandMAE, NCEandRCE
from flnl_more.rofl import RoFL
from flnl_more.selfie import Selfie
from flnl_more.server_steps import FedDyn, FedExP


@hookimpl
def flnl_register_methods() -> list[type[Method]]:
    """The methods of this package."""
    return [
        *(SCE, GCE, ELR),
        *(Median, TrimmedMean, Krum, RFA),
        *(FedRN, FedLSR, RoFL, FedELC),
        *(JointOpt, Selfie),
        *(FedEFC, Forward),
        *(FedRG, FedSIR),
        *(Cores, FedExP, FedDyn),
        *(MixUp, NCEandRCE, NCEandMAE, Focal, BiTempered),
    ]
