"""What every test counts on, whatever shell it is started from."""

import signal


def pytest_configure():
    # A background job of a shell ignores Ctrl-C, and so would its tests and the processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
