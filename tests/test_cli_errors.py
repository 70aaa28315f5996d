"""Bad input: one line on stderr, a telling exit code, nothing written."""

from __future__ import annotations

import json
import shutil

import pytest
from command_line import flnl, interrupted, tiny

from flnl_bench.errors import BadInput
from flnl_bench.methods import parse_value


def refused(*arguments, code=2) -> str:
    """The one line with which a command is refused."""
    done = flnl(*arguments)
    assert done.code == code, (done.code, done.errors)
    assert done.out == ""
    (line,) = done.errors
    assert line.startswith("flnl-bench: ")
    return line.removeprefix("flnl-bench: ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["--method", "fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        (["--method", "fedavg/storng"], "did you mean 'fedavg/strong'?"),
        (
            ["--method", "FedGR"],
            "unknown method 'FedGR'; did you mean 'fedgr'? (`flnl-bench list methods` shows",
        ),
        (["--dataset", "CIFAR-100"], "did you mean 'cifar100'?"),
        (["--setting", "symm-1.0"], "did you mean 'sym-"),
        (["--setting", "sym-1.5"], "sym-1.5"),
        (["--dataset", "cifar1"], "did you mean 'cifar10'?"),
        (["--partition", "idd"], "did you mean 'iid'?"),
        (["--partition", "dir-0"], "dir-0"),
        (["--preset", "quik"], "unknown preset 'quik'; did you mean 'quick'?"),
        (["--model", "tiny-cn"], "did you mean 'tiny-cnn'?"),
        (["--norm", "grup"], "did you mean 'group'?"),
        (
            ["--training", "momentun=1"],
            "unknown value of the protocol 'momentun' in --training",
        ),
        (["--training", "foo"], "--training 'foo': expected KEY=VALUE, as in --training lr=0.05"),
        (["--training", "momentum=x"], "--training momentum=x: expected a number"),
        (["--training", "lr=1", "--lr", "1"], "--training lr and --lr are both given"),
        (["--pretrained"], "has no ImageNet weights; they exist for --model resnet50"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--rounds", "0"], "rounds is 0, but must be a whole number from 1"),
        (["--clients", "0"], "clients is 0"),
        (["--epochs", "-1"], "epochs is -1"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--fraction", "1.5"], "fraction is 1.5"),
        (["--lr", "nan"], "lr is nan"),
        (["--lr", "inf"], "lr is inf"),
        (["--samples", "0"], "samples is 0"),
        (["--samples", "1438"], "samples is 1438, but must be at most 1437, the train images of digits"),
        (["--clients", "201"], "201 clients"),
        (["--set", "mu=1"], "--set mu: fedavg has no such hyper-parameter"),
        (["--set", "vew=weak"], "did you mean 'view'?"),
        (["--set", "view=blue"], "unknown value 'blue' in --set view"),
        (["--set", "view"], "--set 'view': expected KEY=VALUE"),
        (["--set", "view=weak", "--set", "view=plain"], "--set view is given twice"),
        (["--method", "fedprox", "--set", "mu=much"], "--set mu=much: expected a number"),
        (["--seed", "1", "--seeds", "1,2"], "--seed and --seeds are both given"),
        (["--seeds", "1,x"], "--seeds '1,x': expected whole numbers"),
        (["--seeds", "1,1"], "seeds is [1, 1], but must be a list of whole numbers, none of them twice"),
        (["--seeds", ""], "after --seeds"),
        (["--data-dir="], "after --data-dir="),
        (["--seed", "-1"], "invalid value for '--seed'"),
        (["--rounds", "many"], "invalid value for '--rounds': Input should be a valid integer"),
        (["--sede", "1"], "no such option: --sede; did you mean --seed?"),
        (["extra"], "there is no run file extra"),
        (["extra", "more"], "got unexpected extra argument"),
        (
            ["--scenario", "file"],
            "--scenario fixes the federation: leave out --setting, --clients, --samples",
        ),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(tmp_path, changes, expected):
    assert expected in refused(*tiny(tmp_path / "out", *changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "missing option '--method'"),
        (["run", "--method", "fedavg"], "missing option --setting, as in --setting sym-1.0"),
        (["run", "--method", "fedavg", "--scenario", "nowhere"], "there is no scenario file nowhere.npz"),
        (["rum"], "no such command 'rum'; did you mean 'run'?"),
        (["suite", "plan"], "expected a suite, as in `suite plan smoke`"),
        (["list", "method"], "unknown kind 'method'; did you mean 'methods'?"),
        (["scenario"], "missing command"),
        (["scenario", "show"], "missing option --setting"),
        (["scenario", "show", "--setting", "clean", "--clients", "9999"], "9999 clients"),
        (
            ["scenario", "show", "--setting", "clean", "--samples", "9999"],
            "samples is 9999, but must be at most",
        ),
        (["scenario", "export", "--setting", "clean"], "missing option '--output'"),
        (["scenario", "export", "--setting", "clean", "-o", "/dev/null/x"], "cannot write the scenario"),
        (["show", "nothing"], "there is no run 'nothing'"),
        (["leaderboard", "-o", ""], "after -o"),
        (
            ["leaderboard", "--metric", "best", "--metric", "last10"],
            "--metric is given 2 times; give it once",
        ),
        (
            ["results", "export", "-o", "a.zip", "--output", "b.zip"],
            "--output is given 2 times; give it once",
        ),
        ([""], "after flnl-bench"),
    ],
)
def test_a_bad_command_is_refused(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_seed_among_several_stops_all_of_them(tmp_path, monkeypatch):
    from flnl_bench.running import api

    prepare = api.prepare

    def fails_on_two(request, **more):
        if request.seed == 2:
            raise BadInput("seed 2 cannot be split")
        return prepare(request, **more)

    monkeypatch.setattr(api, "prepare", fails_on_two)
    assert refused(*tiny(tmp_path / "out", "--seeds", "1,2")) == "seed 2 cannot be split"
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    line = refused(*tiny(tmp_path / "file" / "out", "--dataset", "digits"))
    assert line.startswith(f"cannot write to {tmp_path / 'file'}")
    assert "--out" in line


def test_missing_data_is_another_exit_code(tmp_path):
    line = refused(*tiny(tmp_path / "out", "--dataset", "cifar10n", "--data-dir", tmp_path / "data"), code=3)
    assert str(tmp_path / "data") in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["journal.jsonl", "part-*.safetensors"])
def test_a_corrupt_checkpoint_is_named_with_what_to_do(tmp_path, monkeypatch, file):
    arguments = tiny(tmp_path, "--dataset", "digits")
    interrupted(2, *arguments, monkeypatch=monkeypatch)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[:30])
    *_, line = (done := flnl(*arguments)).errors
    assert done.code == 2
    assert f"the checkpoint in {path.parent} cannot be read" in line
    assert "--fresh" in line
    assert flnl(*arguments, "--fresh").code == 0


def test_an_unreadable_plugin_is_a_warning(tmp_path, monkeypatch):
    from flnl_bench.methods import default_methods

    monkeypatch.setattr(default_methods(), "problems", ["plugin 'broken' (x): ImportError: no x; skipped"])
    done = flnl(*tiny(tmp_path))
    assert done.code == 0
    assert done.errors[0] == "flnl-bench: warning: plugin 'broken' (x): ImportError: no x; skipped"


# -- show --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run; not to be changed."""
    return flnl(*tiny(tmp_path_factory.mktemp("runs"), "--json")).json["run_dir"]


@pytest.fixture
def copy(finished, tmp_path):
    """A copy to damage."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "incomplete JSON"),
        ("{}", "foreign: not a run of flnl-bench"),
        ('{"status": "done", "schema": 99}', "schema 99, but this version of flnl-bench reads 2"),
    ],
)
def test_show_refuses_a_torn_or_foreign_record(copy, text, why):
    (copy / "run.json").write_text(text)
    assert refused("show", copy).startswith(f"{copy / 'run.json'}: {why}")


@pytest.mark.parametrize("text", ["[1]\n", '{"a": 1}\n', '{"accuracy": "high", "seconds": 1}\n'])
def test_show_refuses_foreign_rounds(copy, text):
    (copy / "rounds.jsonl").write_text(text)
    assert refused("show", copy) == f"{copy / 'rounds.jsonl'} does not hold rounds of flnl-bench"


def test_show_refuses_bytes_that_are_no_text(copy):
    (copy / "rounds.jsonl").write_bytes(b"\xff\xfe\x00")
    assert refused("show", copy) == f"{copy / 'rounds.jsonl'} cannot be read: not text"


def test_show_refuses_a_finished_run_without_rounds(copy):
    (copy / "rounds.jsonl").unlink()
    assert "is a finished run, but has no rounds" in refused("show", copy)


def test_show_refuses_a_folder_without_a_run(tmp_path):
    assert refused("show", tmp_path) == f"{tmp_path} is not a run: it has no run.json"


def test_show_lists_the_candidates_of_an_ambiguous_name(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        shutil.copytree(finished, tmp_path / "results" / "runs" / name / "quick-s1-0123abcd")
    line = refused("show", "0123abcd")
    assert line.startswith("2 runs end in '0123abcd': results/runs/a/quick-s1-0123abcd, results/runs/b/")


def test_show_leaves_out_a_torn_line(copy):
    text = (copy / "rounds.jsonl").read_text()
    (copy / "rounds.jsonl").write_text(text[:-30])
    assert len(json.loads(flnl("show", copy, "--json").out)["rounds"]) == 2


@pytest.mark.filterwarnings("default:fedcorr:UserWarning")
def test_a_warning_of_a_method_is_one_line(tmp_path):
    done = flnl(*tiny(tmp_path / "runs", method="fedcorr"))
    assert done.code == 0
    (line,) = [line for line in done.errors if "rounds leave" in line]
    assert line.startswith("flnl-bench: warning: fedcorr: 3 rounds leave ")
    assert not any("stacklevel" in line or "UserWarning" in line for line in done.errors)


def test_an_empty_matrix_is_one_line(tmp_path):
    (tmp_path / "empty.csv").touch()
    done = flnl("scenario", "show", "--clients", 4, "--setting", f"matrix-1.0,file={tmp_path / 'empty.csv'}")
    assert (done.code, len(done.errors)) == (2, 1)


def test_a_folder_that_is_given_must_be_there_with_published_runs_too(tmp_path):
    done = flnl("leaderboard", tmp_path / "nowhere", "--with-published")
    assert (done.code, len(done.errors)) == (2, 1)
    assert "nowhere" in done.errors[0]


def test_a_file_that_cannot_be_written_is_told_by_its_name(tmp_path):
    flnl(*tiny(tmp_path / "runs"))
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "no" / "x.zip")
    assert (done.code, len(done.errors)) == (2, 1)
    assert ".part" not in done.errors[0]
    assert str(tmp_path / "no" / "x.zip") in done.errors[0]


def test_show_preset_asks_which():
    done = flnl("show", "preset")
    assert (done.code, done.errors) == (
        2,
        ["flnl-bench: which preset? As in `flnl-bench show preset quick`; `list presets` shows all"],
    )


def test_runs_of_another_folder_are_shown_by_their_folder(tmp_path):
    flnl(*tiny(tmp_path / "runs"))
    assert "takes their folders" in flnl("list", "runs", "--runs", tmp_path / "runs").errors[-1]


# -- values that nobody can mean ---------------------------------------------------------------------
@pytest.mark.parametrize(
    "more",
    [
        ["--devices", ""],
        ["--devices", ","],
        ["--method", "fedgr/"],
        ["--method", "fednoro", "--set", "fits=1000000"],
        ["--method", "fl-coteaching", "--set", "forget_rate=inf"],
        ["--clients", "1000000"],
        ["--rounds", str(10**12)],
        ["--seed", str(2**70)],
    ],
)
def test_options_that_no_run_can_have_are_one_line_and_nothing_is_created(tmp_path, more):
    method = ["--method", "fedavg"] if "--method" not in more else []
    refused("run", *method, "--setting", "sym-1.0", *more, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["[" * 5000, "1" * 5000, "{a=" * 3000, '"\\uD800"', "inf", "nan", "1e400"])
def test_values_in_toml_that_no_run_can_have_are_one_line(tmp_path, value):
    (tmp_path / "mine.toml").write_text(f"method = 'fedavg'\nsetting = 'clean'\nlr = {value}\n")
    assert f"{tmp_path / 'mine.toml'}" in refused("run", tmp_path / "mine.toml", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "value"), [(float, "inf"), (float | None, "nan"), (int, "1" + "0" * 21)])
def test_hyper_parameters_are_finite(kind, value):
    with pytest.raises(BadInput, match="expected a"):
        parse_value("--set x", value, kind)


def test_a_disk_that_fails_in_the_data_set_of_a_plugin_is_told_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("FLNL_PLUGINS", str(tmp_path / "mine.py"))
    (tmp_path / "mine.py").write_text(
        "from flnl_bench import DatasetKind\n"
        "def load(folder, progress):\n    raise OSError('disk gone')\n"
        "ENTRY = DatasetKind('gone', 'never there', load)\n"
    )
    done = flnl(*tiny(tmp_path / "runs", "--dataset", "gone"))
    assert (done.code, done.errors[-1]) == (2, "flnl-bench: data set 'gone': OSError: disk gone")
