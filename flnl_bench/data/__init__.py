"""Data sets: names, arrays and where they come from."""

from __future__ import annotations

from flnl_bench.data.catalogue import DATASETS, DatasetInfo, dataset_name, load_dataset
from flnl_bench.data.dataset import Augmentation, Dataset, data_root

__all__ = ["DATASETS", "Augmentation", "Dataset", "DatasetInfo", "data_root", "dataset_name", "load_dataset"]
