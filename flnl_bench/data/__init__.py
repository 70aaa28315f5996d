"""Data sets: names, arrays and where they come from."""

from __future__ import annotations

from flnl_bench.data.catalogue import DATASETS, DatasetInfo
from flnl_bench.data.dataset import Augmentation, Dataset
from flnl_bench.data.load import dataset_name, load_dataset
from flnl_bench.data.root import data_root

__all__ = ["DATASETS", "Augmentation", "Dataset", "DatasetInfo", "data_root", "dataset_name", "load_dataset"]
