"""What torch can do here beside float32: each try in a process of its own, whose death is a finding."""

from __future__ import annotations

import os
import signal
import tempfile
from multiprocessing.connection import Connection
from typing import Any

from flnl_bench.doctor.check_result import Asked, Finding
from flnl_bench.doctor.reproducibility import make, outcome
from flnl_bench.engine.devices import check_precision, choose_devices
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import start_worker

PATIENCE = 120.0  # seconds for a try; compiling takes most of them on a slow machine
ONLY_CUDA = {"precision": ("tf32",), "compile": ("cudagraphs",)}


def probe(asked: Asked, option: str, value: str) -> Finding:
    """One client's training with `--OPTION VALUE`, beside the same without it."""
    if value in ONLY_CUDA[option] and asked.device != "cuda":
        return Finding("ok", "only for CUDA: not tried")
    (plain,) = outcome(make("fedavg"), choose_devices(asked.device), 1, **SHORT).rows
    loss, trouble = tried(asked.device, {option: value})
    if loss is None:
        return Finding("note", f"does not work: {trouble}", _instead(asked.device, option, value))
    apart = abs(loss - plain["loss"]) / plain["loss"]
    text = f"works; the test loss after a round differs by {apart:.1e} of it"
    return Finding("ok", text, "", {"loss": loss, "plain": plain["loss"]})


def _instead(device: str, option: str, value: str) -> str:
    """What to do without it; for bfloat16 on CPUs there may be instructions that work."""
    try:
        if option == "precision":
            check_precision(device, value)
    except BadInput as error:
        return str(error)
    return f"do without --{option} {value}; it is off by default"


# One client, batches of one size: nothing is compiled twice.
SHORT = {"fraction": 0.1, "epochs": 1, "batch_size": 30}


def tried(device: str, changes: dict[str, str]) -> tuple[float | None, str]:
    """The test loss of a process that plays a round, or why there is none."""
    # Errors ignored: a compiler may still be writing when its process is ended.
    with tempfile.TemporaryDirectory(prefix="flnl-doctor-", ignore_cleanup_errors=True) as cache:
        worker, connection = start_worker(_play, device, changes, cache)
        try:
            if not connection.poll(PATIENCE):
                return None, f"no answer within {PATIENCE:.0f} s"
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


# -- in the process of a try -------------------------------------------------------------------------
def _play(connection: Connection, device: str, changes: dict[str, Any], cache: str) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # compilers chatter; what matters is in the answer
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # compile here and now, and leave nothing behind
    try:
        (row,) = outcome(make("fedavg"), choose_devices(device), 1, **SHORT, **changes).rows
        connection.send((row["loss"], ""))
    except Exception as error:
        connection.send((None, one_line(error)))
