"""Features of torch on this machine: each try runs in its own process, whose crash is a result."""

from __future__ import annotations

import os
import signal
import tempfile
from multiprocessing.connection import Connection
from typing import Any

from flnl_bench.doctor.check_result import CheckResult, DoctorOptions
from flnl_bench.doctor.reproducibility import make, trained_rounds
from flnl_bench.engine.devices import check_precision, choose_devices
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import start_worker

TIME_LIMIT = 120.0  # seconds for a try, most of them for compiling on a slow machine
ONLY_CUDA = {"precision": ("tf32",), "compile": ("cudagraphs",)}


def probe(options: DoctorOptions, option: str, value: str) -> CheckResult:
    """Train one client with `--OPTION VALUE`, and compare with the same round without it."""
    if value in ONLY_CUDA[option] and options.device != "cuda":
        return CheckResult("ok", "only for CUDA: not tried")
    (plain,) = trained_rounds(make("fedavg"), choose_devices(options.device), 1, **SMALL_ROUND).rows
    loss, trouble = tried(options.device, {option: value})
    if loss is None:
        return CheckResult("note", f"does not work: {trouble}", _instead(options.device, option, value))
    difference = abs(loss - plain["loss"]) / plain["loss"]
    text = f"works; the test loss after one round differs by {difference:.1e} (relative)"
    return CheckResult("ok", text, "", {"loss": loss, "plain": plain["loss"]})


def _instead(device: str, option: str, value: str) -> str:
    """Say what to use instead; for bfloat16 on CPUs it depends on the instructions."""
    try:
        if option == "precision":
            check_precision(device, value)
    except BadInput as error:
        return str(error)
    return f"do without --{option} {value}; it is off by default"


# One client and batches of one size, so that each function is compiled once.
SMALL_ROUND = {"fraction": 0.1, "epochs": 1, "batch_size": 30}


def tried(device: str, changes: dict[str, str]) -> tuple[float | None, str]:
    """Return the test loss after one round in another process, or why there is none."""
    # Errors are ignored: a compiler may still write when its process is killed.
    with tempfile.TemporaryDirectory(prefix="flnl-doctor-", ignore_cleanup_errors=True) as cache:
        worker, connection = start_worker(_train, device, changes, cache)
        try:
            if not connection.poll(TIME_LIMIT):
                return None, f"no answer within {TIME_LIMIT:.0f} s"
            answer: tuple[float | None, str] = connection.recv()
            return answer
        except (EOFError, OSError):
            worker.join()
            return None, _death(worker.exitcode or 0)
        finally:
            worker.kill()
            worker.join()


def _death(code: int) -> str:
    return (
        f"its process died of {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
    )


# -- in the other process ----------------------------------------------------------------------------
def _train(connection: Connection, device: str, changes: dict[str, Any], cache: str) -> None:
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), 2
    )  # hides the messages of compilers; the result goes through the connection
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # no earlier compilation is used, and no file stays
    try:
        (row,) = trained_rounds(make("fedavg"), choose_devices(device), 1, **SMALL_ROUND, **changes).rows
        connection.send((row["loss"], ""))
    except Exception as error:
        connection.send((None, one_line(error)))
