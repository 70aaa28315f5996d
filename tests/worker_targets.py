"""What workers do in tests/test_processes.py; they import this and nothing heavy."""

import signal

from flnl_bench.processes import hear_termination, interruptible


def answer(connection):
    connection.send(connection.recv())


def wait_for_ever(connection):
    connection.send(None)
    signal.pause()


def listen(connection):
    with interruptible():
        try:
            hear_termination()
            connection.send("started")
            signal.pause()
        except KeyboardInterrupt:
            connection.send("stopped")


def die(connection, *_):
    signal.raise_signal(signal.SIGKILL)


def say_nothing(connection, *_):
    signal.pause()
