"""Runs one loop in a process of its own: `python serve.py MODULE PATH`, commands on standard input.

`train` trains every client once; `round` does a whole round with averages and the test. The answer to each is
a line of JSON: CPU seconds of this process and of all that it started, and the peak of their memory in bytes.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from pathlib import Path

import torch

HERTZ, PAGE = os.sysconf("SC_CLK_TCK"), 1024


def descendants(process: int) -> list[int]:
    """Return the numbers of all living processes below one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has just ended
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def cpu_seconds() -> float:
    """Return the CPU time of this process, of its ended children and of all living processes below it."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in spent)
    for process in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / HERTZ  # own and of ended children
    return total


def peak_memory() -> int:
    """Return the sum of the peaks of this process and of those below it."""
    total = 0
    for process in (os.getpid(), *descendants(os.getpid())):
        try:
            status = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * PAGE for line in status if line.startswith("VmHWM"))
    return total


def main() -> None:
    """Answer commands until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print
    module, path = sys.argv[1:]
    torch.set_num_threads(1)
    if path != "-":
        sys.path.insert(0, path)
    from workload import Workload

    loop = importlib.import_module(module).Loop(Workload())
    loop.round()
    for command in sys.stdin:
        before = cpu_seconds()
        inside = getattr(loop, command.strip())()  # a loop that cannot stop between rounds measures itself
        seconds = cpu_seconds() - before if inside is None else inside
        print(json.dumps({"seconds": seconds, "peak": peak_memory()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
