"""Text of foreign origin in each medium, lost streams, and small things that new users found."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os

import pytest
from command_line import flnl, tiny
from rich.console import Console
from synthetic_runs import round_row, write_run

from flnl_bench import escaping
from flnl_bench.cli import main
from flnl_bench.cli.console import table
from flnl_bench.leaderboards import pandas_api
from flnl_bench.processes import Lossy
from flnl_bench.results.run_record import summarise

EVIL = "fedavg \x1b]0;title\x07\x1b[2J\x9b31m<script>alert(1)</script> | x\n| fake | 99.99 |\u202e"


# -- text of foreign origin --------------------------------------------------------------------------
def test_each_medium_has_its_escapes():
    assert escaping.terminal("a\x1b[2J\x9b\nb\u202e") == r"a\x1b[2J\x9b b\u202e"
    assert json.loads(escaping.json('"\x9b\u202e\U000e0001 ü"')) == "\x9b\u202e\U000e0001 ü"
    assert escaping.json('"\x9b ü"') == '"\\u009b ü"'
    assert [escaping.csv(cell) for cell in ("=1+1", " @x", "+1", "-1", "a=1", -1.5)] == [
        *("'=1+1", "' @x", "'+1", "'-1", "a=1"),
        -1.5,
    ]
    assert escaping.markdown("<b>|\n| x") == r"\<b\>\| \| x"
    assert escaping.html('<b>"\x1b') == r"&lt;b&gt;&quot;\x1b"
    assert escaping.latex("\\input{x}\x00") == r"\textbackslash{}input\{x\}\textbackslash{}x00"


@pytest.fixture
def evil(tmp_path):
    """A run whose names a stranger chose."""
    write_run(tmp_path, label=EVIL, changed={"view": EVIL}, hyperparameters={"=cmd": "\ud800" + EVIL})
    return tmp_path


@pytest.mark.parametrize("kind", ["table", "md", "latex", "csv", "html", "json"])
def test_a_name_has_no_effect_in_any_format_of_a_leaderboard(evil, kind):
    done = flnl("leaderboard", evil, "--format", kind, "-o", evil / "out")
    assert done.code == 0
    written = (evil / "out").read_text()
    assert not set("\x1b\x07\x9b\u202e") & set(written)
    assert ("<script>" in written) == (kind in ("table", "csv", "json"))  # which know no markup
    assert not any(line.startswith("| fake") for line in written.splitlines())
    if kind == "csv":
        cells = [cell for row in csv.reader(io.StringIO(written)) for cell in row]
        assert not any(cell.startswith(("=", "@", "+")) for cell in cells)


def test_what_is_printed_cannot_steer_the_terminal(evil):
    for arguments in (["leaderboard", evil], ["show", next(evil.rglob("run.json"))]):
        done = flnl(*arguments)
        assert not set("\x1b\x07\x9b\u202e") & set(done.out + "".join(done.errors))


def test_json_on_the_command_line_is_that_format(tmp_path):
    write_run(tmp_path)
    assert (
        flnl("leaderboard", tmp_path, "--json").json == flnl("leaderboard", tmp_path, "--format", "json").json
    )
    assert flnl("leaderboard", tmp_path, "--json", "--format", "md").code == 2


# -- what new users found ----------------------------------------------------------------------------
def test_a_table_of_one_row_has_no_rank_and_a_sweep_that_was_asked_for_no_warning(tmp_path):
    write_run(tmp_path / "one")
    (text,) = pandas_api.leaderboard(pandas_api.load_results(tmp_path / "one")).text_tables
    assert "rank" not in text.columns
    assert not any("Rank" in note for note in text.notes)
    for mu in (0.1, 1.0):
        write_run(tmp_path / "two", "fedprox", hyperparameters={"mu": mu}, changed={"mu": mu})
    board = pandas_api.leaderboard(pandas_api.load_results(tmp_path / "two"))
    assert "rank" in board.text_tables[0].columns
    assert board.warnings == []


def test_the_hint_to_the_paper_keeps_what_was_asked_for_and_comes_once(tmp_path):
    more = ["--partition", "shard-5", "--set", "mu=0.5"]
    first, again, as_json = (
        flnl(*tiny(tmp_path / out, *more, *json_flag, method="fedprox"))
        for out, json_flag in (("a", []), ("a", []), ("b", ["--json"]))
    )
    hint = "--setting sym-1.0 --partition shard-5 --set mu=0.5 --preset paper --dataset cifar10"
    assert [any(hint in line for line in done.errors) for done in (first, again, as_json)] == [
        True,
        False,
        False,
    ]


def test_a_training_loss_that_is_never_finite_marks_the_run_as_diverged():
    def diverged(*losses, **more):
        rows = [{**round_row(i, 10.0), "train_loss": loss, **more} for i, loss in enumerate(losses)]
        return summarise(rows).diverged

    assert diverged(None, None) == 0
    assert diverged(1.0, None, None) == 1
    assert diverged(None, 1.0) is None
    assert diverged(None, None, backward=0) is None  # nobody trained
    assert diverged(1.0, 1.0, loss=None) == 0


def test_the_protocol_of_a_small_data_set_has_its_true_number_of_images(tmp_path):
    write_run(tmp_path, training={"samples": 5000})  # of 1437
    (text,) = pandas_api.leaderboard(pandas_api.load_results(tmp_path)).text_tables
    assert any("1437 images" in line for line in text.about)


def test_a_number_is_never_parted_from_its_unit():
    rows, out = table("name", "share", right=("share",)), io.StringIO()
    rows.add_row("many words " * 20, "12.34 %")
    Console(file=out, width=30).print(rows)
    assert "12.34 %" in out.getvalue()


# -- streams that are lost ---------------------------------------------------------------------------
class Full(io.StringIO):
    """A disk that is full."""

    def write(self, text):
        raise OSError(28, "No space left on device")


def test_a_run_continues_when_its_output_is_lost(tmp_path):
    full, words = Full(), [str(word) for word in tiny(tmp_path, "--json")]
    with contextlib.redirect_stderr(full), contextlib.redirect_stdout(full), pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 1  # the run is complete, its printed result is not
    (record,) = tmp_path.rglob("run.json")
    assert json.loads(record.read_text())["status"] == "done"


def test_a_stream_that_is_lost_swallows_the_rest():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as pipe:
        stream = Lossy(pipe)
        for _ in range(3):
            stream.write("line\n")
            stream.flush()
        assert isinstance(stream.error, BrokenPipeError)


@pytest.mark.parametrize("columns", ["0", "1", "x", "-3"])
def test_terminals_without_width_make_no_traceback(tmp_path, monkeypatch, columns):
    write_run(tmp_path)
    for arguments in (["leaderboard", tmp_path], ["run", "--help"]):
        monkeypatch.setenv("COLUMNS", columns)
        assert flnl(*arguments).code == 0


# -- help --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", [[], ["run"], ["suite"], ["leaderboard"], ["results", "import"]])
def test_the_help_shows_no_type_where_no_value_is_taken(command):
    assert "bool" not in flnl(*command, "--help").out


def test_shells_can_complete_commands(monkeypatch):
    monkeypatch.setenv("_FLNL_BENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "flnl-bench le")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert flnl().out.split() == ["leaderboard"]
