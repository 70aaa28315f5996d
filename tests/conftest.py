"""What every test counts on, whatever shell it is started from."""

import os
import signal


def pytest_configure():
    # A background job of a shell ignores Ctrl-C, and so would its tests and the processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests read back what the system holds; only a loss of power shows whether the disk has it, and on a busy
    # machine the wait is long. That the disk is asked is tested in test_checkpoint.
    os.fsync = lambda descriptor: None
