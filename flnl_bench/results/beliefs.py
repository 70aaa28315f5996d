"""beliefs.npz, the method's beliefs at the end of a run: the names of its arrays, and its reader."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.atomic_files import replace_file
from flnl_bench.errors import BadInput
from flnl_bench.input_files import read_npz, require_arrays

if TYPE_CHECKING:
    import numpy as np

# Names of arrays: those that every file has, and those that some files have.
SAMPLE_ARRAYS = (
    ("client", "row", "given"),
    ("true", "clean", "clean_probability", "losses", "labels", "pseudo_labels"),
)  # one value per sample
CLIENT_ARRAYS = (
    ("noise_kind", "nominal_ratio", "estimated_ratio", "noisy_client"),
    ("realised_ratio", "realised_open"),
)  # one value per client
LARGEST_NUMBER = 1_000_000  # of a client or class
_CLIENT_NAMES = (*CLIENT_ARRAYS[0], *CLIENT_ARRAYS[1])
BELIEF_ARRAYS = (*SAMPLE_ARRAYS[0], *SAMPLE_ARRAYS[1], *_CLIENT_NAMES, "transitions")


def read_beliefs(
    path: Path,
    required: Iterable[str],
    optional: Iterable[str] = (),
    content: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Read the named arrays, each with one value per sample or per client, of a file or of its `content`."""
    required = tuple(required)
    if content is None:
        arrays = read_npz(path, required, optional)
    else:
        require_arrays(path, required, content)
        arrays = {name: content[name] for name in (*required, *optional) if name in content}
    lengths: dict[bool, int] = {}  # of arrays over clients, and over samples
    for name, array in arrays.items():
        if name == "transitions":
            continue
        kind = array.dtype.kind
        fits = array.ndim == 1 and kind in ("U" if name == "noise_kind" else "iufb")
        if not fits or lengths.setdefault(name in _CLIENT_NAMES, len(array)) != len(array):
            raise BadInput(f"{path}: {name} is {array.dtype} {array.shape}, which does not fit the others")
        whole = kind in "iu" and len(array) > 0
        if whole and name != "row" and not -1 <= array.min() <= array.max() < LARGEST_NUMBER:
            raise BadInput(f"{path}: {name} has values that are neither classes nor clients")
    return arrays


def check_beliefs(path: Path, content: Mapping[str, np.ndarray], samples: int, clients: int) -> None:
    """Refuse arrays that do not fit the numbers of samples and clients of their run."""
    arrays = read_beliefs(path, ("row", "noise_kind"), BELIEF_ARRAYS, content)
    if foreign := sorted(content.keys() - arrays.keys()):
        raise BadInput(f"{path} has the array {foreign[0]}, which is none of a run")
    rows, kinds = len(arrays["row"]), len(arrays["noise_kind"])
    if kinds != clients or rows > samples:
        counts = f"{rows} samples and {kinds} clients"
        raise BadInput(f"{path} is of {counts}, but the run has {samples} and {clients}")


def write_beliefs(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays as one file."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    replace_file(path, buffer.getvalue())
