"""Where data sets are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

HOW_TO_POINT = "or point --data-dir or FLNL_DATA to the folder that holds it"


def data_root(data_dir: str | Path | None = None) -> Path:
    """The data folder: the argument, else FLNL_DATA, else the user's cache folder."""
    chosen = data_dir or os.environ.get("FLNL_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("flnl-bench"))
