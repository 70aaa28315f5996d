"""The command line: one file per command; errors become one line here."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from flnl_bench.cli import (
    compare,
    doctor,
    leaderboard,
    listing,
    observe,
    plot,
    plugin,
    results,
    run,
    scenario,
    show,
    suite,
    verify,
)
from flnl_bench.cli.console import Interrupted, note
from flnl_bench.cli.stdio import standard_streams
from flnl_bench.errors import BadInput, BrokenContract, MethodFailed, MissingData, one_line
from flnl_bench.processes import interruptible

FAILED, BAD_INPUT, MISSING_DATA, INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(name="flnl-bench", pretty_exceptions_enable=False)
app.command("run")(run.run_command)
app.command("list")(listing.list_names)
app.command("show")(show.show_command)
app.command("suite")(suite.suite_command)
app.command("leaderboard")(leaderboard.leaderboard_command)
app.command("report")(results.report_command)
app.command("plot")(plot.plot_command)
app.command("compare")(compare.compare_command)
app.command("verify")(verify.verify_command)
app.command("doctor")(doctor.doctor_command)
app.add_typer(observe.observe_commands, name="observe")
app.add_typer(scenario.scenario_commands, name="scenario")
app.add_typer(results.results_commands, name="results")
app.add_typer(plugin.plugin_commands, name="plugin")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", metavar="")
    ] = False,
) -> None:
    """Federated learning with noisy labels: run methods on equal scenarios and compare them.

    Start with: flnl-bench run --method fedavg --setting sym-1.0
    """
    if version:
        from flnl_bench import __version__

        print(f"flnl-bench {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        context.get_help()  # typer prints it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 failed, 2 bad input, 3 data missing, 130 interrupted."""
    with interruptible(), standard_streams() as out, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(f"warning: {' '.join(str(message).split())}")
        code = _execute(arguments)
        out.flush()
        if out.error and not isinstance(out.error, BrokenPipeError):  # `| head` closes the pipe on purpose
            note(f"the output could not be printed: {one_line(out.error)}")
    sys.exit(code or (FAILED if out.error else 0))


def _execute(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code; every error that a user can cause is one line on stderr."""
    try:
        check_not_empty(sys.argv[1:] if arguments is None else arguments)
        command = typer.main.get_command(app)
        hide_types_of_switches(command)
        code = command(args=arguments, prog_name="flnl-bench", standalone_mode=False)
    except Interrupted as stopped:
        return _fail(INTERRUPTED, str(stopped))
    except (MethodFailed, BrokenContract) as error:
        return _fail(FAILED, str(error))
    except BadInput as error:
        return _fail(BAD_INPUT, str(error))
    except MissingData as error:
        return _fail(MISSING_DATA, str(error))
    except typer.TyperException as error:
        return _fail(BAD_INPUT, usage_line(error))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _fail(BAD_INPUT, f"{error.strerror or one_line(error)}{where}")
    return _fail(INTERRUPTED, "interrupted") if code == INTERRUPTED else int(code or 0)


def check_not_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, as an unset shell variable leaves them: a path would be this folder."""
    for before, argument in itertools.pairwise(["flnl-bench", *arguments]):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            raise BadInput(f"the value after {argument or before} is empty")


def hide_types_of_switches(command: Any) -> None:
    """Hide the type <bool> of switches in the help: they take no value."""
    for option in command.get_params(typer.Context(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        hide_types_of_switches(inner)


def _fail(code: int, message: str) -> int:
    note(" ".join(message.split()))
    return code


def usage_line(error: typer.TyperException) -> str:
    """Return a usage error as one line: what is wrong, the nearest option, where the help is."""
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    text = f"{error.message}; did you mean {near[0]}?" if near else error.format_message()
    text = text[:1].lower() + text[1:].rstrip(".").replace(". Did you mean", "; did you mean")
    text = text.partition(", unable to parse")[0]  # the rest repeats the message
    context: Any = getattr(error, "ctx", None)
    return f"{text} (see {context.command_path} --help)" if context else text
