"""What every test counts on, whatever shell it is started from."""

import dataclasses
import os
import signal

import pytest


def pytest_configure():
    # A background job of a shell ignores Ctrl-C, and so would its tests and the processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests read back what the system holds; only a loss of power shows whether the disk has it, and on a busy
    # machine the wait is long. That the disk is asked is tested in test_checkpoint.
    os.fsync = lambda descriptor: None


@pytest.fixture
def few_images(monkeypatch):
    """Makes the data set cifar10 a smaller one, of any images."""
    from flnl_bench.data import DATASETS, downloads

    def few(train, test):
        table = downloads.TORCHVISION
        facts = dataclasses.replace(table["cifar10"], train_images=train, test_images=test)
        monkeypatch.setitem(table, "cifar10", facts)
        for name in ("cifar10", "cifar10n"):
            monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], digest=None))

    return few
