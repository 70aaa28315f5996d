"""The tab key completes values."""

import subprocess
import sys

import pytest
from command_line import flnl
from synthetic_runs import write_run

from flnl_bench.cli import completion


@pytest.fixture
def complete(monkeypatch):
    """What bash would offer after these words."""

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_FLNL_BENCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["flnl-bench", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return flnl().out.split()

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "--method", "fedg"), ["fedgr"]),
        (("run", "--method", "fedgr/no-s"), ["fedgr/no-sieve", "fedgr/no-strong"]),
        (("run", "--setting", "mix"), ["mixed-0.6", "mixed-1.0"]),
        (("run", "--partition", "hsu"), ["hsu-0.3"]),
        (("run", "--dataset", "cifar100"), ["cifar100", "cifar100n"]),
        (("run", "--model", "resnet18-p"), ["resnet18-projection"]),
        (("run", "--preset", "pap"), ["paper"]),
        (("suite", "smo"), ["smoke"]),
        (("plot", "mem"), ["memorization"]),
        (("leaderboard", "--metric", "last"), ["last10"]),
        (("leaderboard", "--format", "lat"), ["latex"]),
        (("leaderboard", "--method", "feddi"), ["feddiv"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_values_are_completed(words, expected, complete):
    assert complete(*words) == expected


def test_runs_are_completed_by_their_folders(tmp_path, monkeypatch, complete):
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "results" / "runs", "fedavg")
    assert complete("show", "results/") == [str(folder.relative_to(tmp_path))]


def test_files_are_completed_next_to_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").touch()
    (tmp_path / "smaller").mkdir()
    assert completion.suites("sm") == ["small.toml", "smaller/", "smoke"]


def test_a_mistake_in_a_plugin_leaves_the_shell_in_peace(monkeypatch):
    assert completion.completer(lambda text: 1 / 0)("a") == []


def test_names_of_methods_are_completed_without_loading_torch():
    code = "import sys; from flnl_bench.cli.completion import methods; "
    code += "print(methods('fedg'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "['fedgr'] False"
