"""`flnl-bench plugin`: start a plugin, and check one."""

from __future__ import annotations

import contextlib
import faulthandler
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import note, print_json, waiting
from flnl_bench.cli.options import FILES, METHOD, option, parse_changes
from flnl_bench.cli.outcome import print_paths, program
from flnl_bench.errors import BadInput, unknown
from flnl_bench.processes import exits_refused

if TYPE_CHECKING:
    from flnl_bench.methods import Methods
    from flnl_bench.testing import Finding

IMPORT_LIMIT, LAST_CHANCE = 60.0, 5.0  # seconds

plugin_commands = typer.Typer(help="Start a plugin of your own, and check one.", no_args_is_help=True)


@plugin_commands.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case words joined by dashes.")],
    kind: Annotated[
        str, option(METHOD, "KIND", "method, dataset, noise, model, partition or tracker.")
    ] = "method",
    out: Annotated[Path, option(FILES, "DIR", "Where the folder NAME is made.")] = Path(),
) -> None:
    """Write a complete package with a working example, a test and a README."""
    from flnl_bench.scaffold import PLUGIN_KINDS, new_plugin

    folder = new_plugin(name, kind, out)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    print(f"made {folder}: {', '.join(files)}")
    print(f"next  pip install -e {folder}")
    print(f"      flnl-bench run {PLUGIN_KINDS[kind][1].replace('NAME', name)}")
    print(f"      flnl-bench plugin check {name}")


@plugin_commands.command()
def check(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]",
            help="A method or other entry, a plugin, or a Python file.",
            autocompletion=completion.methods,
            show_default="all plugins but our own",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        option(METHOD, "KEY=VALUE", "Check a method with this hyper-parameter; repeatable.", "--set"),
    ] = None,
    plugin: options.PluginFiles = None,
    as_json: options.Json = False,
) -> None:
    """Check what plugins add: is it declared, repeatable, resumable, blind to true labels, …

    A failure is explained: why it matters, and the usual cause. Exit code 1 if something failed.
    """
    is_file = what is not None and what.endswith(".py")
    options.use_plugins([*(plugin or []), *([Path(what)] if what and is_file else [])])
    with waiting("loading"):
        import torch  # noqa: F401 (before the limit: it may take as long from a slow disk)

        from flnl_bench.methods import default_methods

        with exits_refused(), limited(IMPORT_LIMIT, "its import"):
            registry = default_methods()
        plugins, entries = select_entries(registry, what)
        if change:
            methods = [entry for kind, _, entry in entries if kind == "method"]
            if len(methods) != 1:
                raise BadInput(f"--set changes one method, but {len(methods)} are checked; name one")
            made = registry.make(methods[0].name, {}, parse_changes(change))
            entries = [("method", registry.methods, made)]
    problems = [line for line in registry.problems if any(line.startswith(f"plugin {p!r}") for p in plugins)]
    reports = []
    for kind, table, entry in entries:
        if not as_json:
            print(f"{kind} {entry.name} (from {table.origin[entry.name]})")
        findings = list(_examined(entry, quiet=as_json))
        checks = [_object(finding) for finding in findings]
        reports.append(
            {"kind": kind, "name": entry.name, "plugin": table.origin[entry.name], "checks": checks}
        )
    for line in problems:
        note(line)
    failed = sum(check["status"] == "failed" for report in reports for check in report["checks"])
    failed += len(problems)
    if as_json:
        print_json({"entries": reports, "problems": problems, "failed": failed})
    elif reports:
        print(f"{failed} failed" if failed else "nothing failed")
        if is_file and not failed and reports[0]["kind"] == "method":
            words = ["--plugin", str(what), "--method", reports[0]["name"], "--setting", "sym-1.0"]
            words += [word for value in change or () for word in ("--set", value)]
            print_paths(next=f"{program()} run {shlex.join(words)}")
    raise typer.Exit(1 if failed else 0)


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Raise an error in the block when its time is over, where the system has timers.

    The timer rings every second, because the error is lost in code that ignores errors. If the block still
    continues, because it catches all of them or runs in C, the process ends with its traceback.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise BadInput(f"{what} did not end within {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    # Not to sys.stderr: a notebook's has no file descriptor.
    faulthandler.dump_traceback_later(seconds + LAST_CHANCE, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def select_entries(registry: Methods, what: str | None) -> tuple[list[str], list[tuple[str, Any, Any]]]:
    """Return the named plugins, and the entries to check: (kind, table, entry)."""
    from flnl_bench.registry import OWN_DISTRIBUTION

    everything = [
        (kind.removesuffix("s"), table, table[name])
        for kind, table in registry.tables.items()
        for name in table
    ]
    if what is not None and not what.endswith(".py"):
        named = [item for item in everything if item[2].name == what]
        if named:
            return [], named
        if what not in registry.sources:
            names = {entry.name for _, _, entry in everything} | {*registry.sources}
            raise unknown("plugin or entry", what, names)
        plugins = [what]
    elif what is not None:
        file = Path(what).expanduser().absolute()
        plugins = [name for name, source in registry.sources.items() if source.file == file]
    else:
        plugins = [name for name, source in registry.sources.items() if source.owner != OWN_DISTRIBUTION]
        if not plugins:
            raise BadInput("there is no plugin but our own; name a FILE.py, or an entry such as fedavg")
    return plugins, [item for item in everything if item[1].origin[item[2].name] in plugins]


def _examined(entry: Any, quiet: bool) -> Iterator[Finding]:
    """Yield the findings about an entry, each printed as soon as it is known."""
    from flnl_bench.testing import examine

    for finding in examine(entry):
        if not quiet:
            for line in lines_of(finding):
                print(line, flush=True)
        yield finding


def lines_of(finding: Finding) -> list[str]:
    """Return one check as lines for people."""
    lines = [f"  {finding.status:<8} {finding.check.what}"]
    if finding.status == "skipped":
        lines[0] += f" ({finding.problem})"
    if finding.status == "failed":
        lines += [
            f"           what failed:    {finding.problem}",
            f"           why it matters: {finding.check.why}",
            f"           usual cause:    {finding.check.cause}",
        ]
    return lines


def _object(finding: Finding) -> dict[str, str]:
    check = finding.check
    name = check.function.__name__.removeprefix("check_")
    about = {"check": name, "what": check.what, "status": finding.status, "problem": finding.problem}
    return about | ({"why": check.why, "cause": check.cause} if finding.status == "failed" else {})
