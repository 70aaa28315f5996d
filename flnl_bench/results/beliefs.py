"""What a method thought at the end of a run, beliefs.npz: the one reader, which trusts no array."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.atomic_files import read_npz
from flnl_bench.errors import BadInput

if TYPE_CHECKING:
    import numpy as np

SAMPLES = (
    "row",
    "client",
    "given",
    "true",
    "clean",
    "clean_probability",
    "losses",
    "labels",
    "pseudo_labels",
)
CLIENTS = (
    *("noise_kind", "nominal_ratio", "estimated_ratio", "noisy_client"),
    *("realised_ratio", "realised_open"),
)  # one a client
MOST = 1_000_000  # clients or classes


def read_beliefs(
    path: Path, required: Iterable[str], optional: Iterable[str] = (), content: bytes | None = None
) -> dict[str, np.ndarray]:
    """The named arrays, each with one value a sample or one a client; counts of transitions as they are."""
    arrays = read_npz(path, required, optional, follow=False, content=content)
    lengths: dict[bool, int] = {}  # of arrays over clients, and over samples
    for name, array in arrays.items():
        if name == "transitions":
            continue
        kind = array.dtype.kind
        fits = array.ndim == 1 and kind in ("U" if name == "noise_kind" else "iufb")
        if not fits or lengths.setdefault(name in CLIENTS, len(array)) != len(array):
            raise BadInput(f"{path}: {name} is {array.dtype} {array.shape}, which does not fit the others")
        whole = kind in "iu" and len(array) > 0
        if whole and name != "row" and not -1 <= array.min() <= array.max() < MOST:
            raise BadInput(f"{path}: {name} has values that are neither classes nor clients")
    return arrays


def check_beliefs(path: Path, content: bytes, samples: int | None, clients: int) -> None:
    """Refuse a file whose arrays cannot be of a run with so many samples and clients."""
    arrays = read_beliefs(path, ("row", "noise_kind"), (*SAMPLES, *CLIENTS), content)
    rows, kinds = len(arrays["row"]), len(arrays["noise_kind"])
    if kinds != clients or (samples is not None and rows > samples):
        told = f"{rows} samples and {kinds} clients"
        raise BadInput(f"{path} is of {told}, but the run has {samples} and {clients}")
