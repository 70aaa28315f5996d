"""Data sets: the table of their names, the arrays, and the loaders."""

from __future__ import annotations

from flnl_bench.data.catalogue import DATASETS, dataset_name, find_dataset, load_dataset
from flnl_bench.data.dataset import Augmentation, Dataset, DatasetKind, LoadProgress, data_root

__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "DatasetKind",
    "LoadProgress",
    "data_root",
    "dataset_name",
    "find_dataset",
    "load_dataset",
]
