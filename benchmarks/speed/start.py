"""How long it takes until something happens: CPU time of whole programs."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable

from benchmarks.speed.measuring import Table, best_seconds

RUN = (
    "run --method fedavg --setting sym-1.0 --rounds 1 --epochs 1 --fraction 0.05 --device cpu --fresh --json"
)
PROGRAMS = {
    "import typer": "import typer",
    "flnl-bench --help": "from flnl_bench.cli import main; main(['--help'])",
    "import torch": "import torch",
    "a run of five steps, recorded": "from flnl_bench.cli import main; main({arguments})",
}


def children_seconds() -> float:
    """CPU time of all child processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def program(code: str, out: str) -> Callable[[], object]:
    """A call that runs Python code in a process of its own."""
    code = code.replace("{arguments}", repr([*RUN.split(), "--out", out]))
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def start(repeats: int) -> Table:
    """Every program against `import torch`, without which no step is taken."""
    table = Table("Start: CPU time of a whole program in units of `import torch`")
    with tempfile.TemporaryDirectory() as out:
        calls = [program(code, out) for code in PROGRAMS.values()]
        seconds = dict(zip(PROGRAMS, best_seconds(calls, repeats, children_seconds), strict=True))
    for name, spent in seconds.items():
        table.add(program=name, cost=spent / seconds["import torch"])
    return table
