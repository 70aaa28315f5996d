"""Our engine without augmentation."""

from __future__ import annotations

import run_ours


class Loop(run_ours.Loop):
    """FedAvg on the plain view."""

    view = "plain"
