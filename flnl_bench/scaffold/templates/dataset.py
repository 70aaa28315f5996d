"""The data set example: where its images come from."""

from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench import Dataset, DatasetKind, hookimpl

flnl_api = 1  # the version of flnl-bench's plugin API that this is written for


def load(root: Path, progress: Any) -> Dataset:
    """8×8 images with a bright row among noise; the class is which row. Yours may read files below `root`."""
    rng = np.random.default_rng(0)
    labels = np.arange(1000) % 8
    images = rng.integers(0, 160, (1000, 8, 8), dtype=np.uint8)
    images[np.arange(1000), labels] += 90
    return Dataset.from_arrays("example", images[:800], labels[:800], images[800:], labels[800:])


EXAMPLE = DatasetKind(
    "example",
    "1,000 grey 8×8 images of bars",
    load,
    classes=8,
    train_images=800,
    offline=True,
    model="tiny-cnn",
)


@hookimpl
def flnl_register_datasets() -> list[DatasetKind]:
    """What this plugin adds."""
    return [EXAMPLE]
