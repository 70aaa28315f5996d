"""The command line: one file per command; errors become one line here."""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
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
        code = all_commands()(args=arguments, prog_name="flnl-bench", standalone_mode=False)
    except Interrupted as stopped:
        return _fail(INTERRUPTED, str(stopped))
    except KeyboardInterrupt:  # typer catches it only while a command runs
        return _fail(INTERRUPTED, "interrupted")
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


@functools.cache  # typer needs longer to make them than most commands need
def all_commands() -> Any:
    """Make the commands of `app`, with our rules for options."""
    command = typer.main.get_command(app)
    adapt_options(command)
    return command


def check_not_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, as an unset shell variable leaves them: a path would be this folder."""
    for before, argument in itertools.pairwise(["flnl-bench", *arguments]):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            raise BadInput(f"the value after {argument or before} is empty")


def adapt_options(command: Any) -> None:
    """Hide the type <bool> of switches in the help: they take no value. Refuse repeated single values."""
    command.make_parser = functools.partial(_strict_parser, command.make_parser)
    for option in command.get_params(typer.Context(command)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        adapt_options(inner)


def _strict_parser(make_parser: Callable[[Any], Any], context: Any) -> Any:
    """Return a parser that refuses an option with one value if it is given twice: none of them is meant."""
    parser = make_parser(context)
    parse = parser.parse_args

    def parse_args(args: list[str]) -> Any:
        values, rest, order = parse(args)
        for option, times in Counter(order).items():
            many = option.param_type_name == "argument" or option.multiple or option.is_flag
            if times > 1 and not many and not context.resilient_parsing:  # as while a shell completes
                raise BadInput(f"{max(option.opts, key=len)} is given {times} times; give it once")
        return values, rest, order

    parser.parse_args = parse_args
    return parser


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
