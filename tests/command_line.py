"""Calls of the command line in this process, for the tests."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from dataclasses import dataclass
from pathlib import Path

from flnl_bench.cli import main
from flnl_bench.methods import default_methods
from flnl_bench.running.runner import Runner

TINY = ["--rounds", "3", "--clients", "4", "--epochs", "1", "--samples", "200", "--fraction", "0.5"]

if not default_methods().methods:  # a source tree that is not installed has no entry points
    import flnl_methods
    import flnl_more

    for cls in (*flnl_methods.flnl_register_methods(), *flnl_more.flnl_register_methods()):
        default_methods().add("methods", cls)


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    errors: list[str]  # the lines of stderr

    @property
    def json(self):
        """The one JSON document on stdout."""
        assert self.code == 0, self.errors
        return json.loads(self.out)


def flnl(*arguments) -> Done:
    """`flnl-bench ARGUMENTS`."""
    out, errors, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), errors.getvalue().splitlines())


def tiny(out, *more, method="fedavg", setting="sym-1.0") -> list:
    """The arguments of a run of less than a second; `more` may give other values."""
    options = ["--method", method, "--setting", setting, *TINY, "--out", out]
    pairs = zip(options[::2], options[1::2], strict=True)
    return ["run", *(word for pair in pairs if pair[0] not in more for word in pair), *more]


def rounds_of(run_dir) -> list[dict]:
    """The lines of rounds.jsonl without the times."""
    rows = [json.loads(line) for line in (Path(run_dir) / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    return rows


def interrupted(number, *arguments, monkeypatch, by=signal.SIGINT) -> Done:
    """Run a command that a signal stops when a round is finished."""
    run = Runner.run

    def stopping(self, *, fresh, progress):
        def watch(row):
            progress(row)
            if row["round"] + 1 == number:
                signal.raise_signal(by)

        return run(self, fresh=fresh, progress=watch)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", stopping)
        return flnl(*arguments)
