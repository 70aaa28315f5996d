"""Suite files, the grids they make, and who may work on a run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl, rounds_of
from rich.console import Console

from flnl_bench.cli.suite_view import picture
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput
from flnl_bench.recorder import claim as claim_module
from flnl_bench.recorder.claim import BEAT, STALE, Busy, Claim, claimed, owner
from flnl_bench.resolve import Request, describe, prepare
from flnl_bench.suite import on_ray
from flnl_bench.suite.estimate import TRAIN_IMAGES, fedavg_samples
from flnl_bench.suite.file import read_suite
from flnl_bench.suite.grid import make_grid
from flnl_bench.suite.on_ray import cpus_of, room
from flnl_bench.suite.state import Board, State, look

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SEVEN = ["clean", "sym-0.6", "sym-1.0", "asym-0.6", "asym-1.0", "mixed-0.6", "mixed-1.0"]
NINE = [
    "fedavg",
    "fedprox",
    "fl-coteaching",
    "fl-dividemix",
    "fedcorr",
    "fednoro",
    "feddiv",
    "fedfixer",
    "fedgr",
]
TINY = "[training]\nsamples = 200\nclients = 4\nfraction = 0.5\nrounds = 2\nepochs = 1\n"


def grid_of(text, tmp_path):
    """The runs of a suite file with this text."""
    file = tmp_path / "it.toml"
    file.write_text(text)
    return make_grid(read_suite(file), out=tmp_path)


# -- shipped files -----------------------------------------------------------------------------------
# Runs: methods × settings × partitions × seeds; the default of FedGR is in each of its four sweeps.
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("paper-cifar10", 9 * 7 * 2 * 3),
        ("paper-cifar100", 9 * 7 * 2 * 3),
        ("paper-clothing1m", 8 * 1 * 2 * 3),
        ("paper-ablations", 9 * 3 * 2 * 3),
        ("paper-hyperparameters", (4 * 3 - 3) * 3 * 2 * 3),
        ("quick-digits", 10 * 7 * 2 * 3),
        ("quick-cifar10", 10 * 2 * 2 * 3),
        ("smoke", 3 * 2 * 2),
    ],
)
def test_every_shipped_suite_is_valid_and_has_its_runs(name, runs, tmp_path):
    suite = read_suite(BENCHMARKS / f"{name}.toml")
    assert suite.name == name
    assert len(make_grid(suite, out=tmp_path)) == runs


def test_no_shipped_suite_is_left_out():
    assert len(list(BENCHMARKS.glob("*.toml"))) == 8


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_papers_tables_have_its_axes(name):
    suite = read_suite(BENCHMARKS / f"paper-{name}.toml")
    assert (list(suite.methods), list(suite.settings)) == (NINE, SEVEN)
    assert (suite.partitions, suite.seeds) == (("iid", "dir-0.3"), (1, 13, 42))


# -- the grid ----------------------------------------------------------------------------------------
def test_sweeps_are_products_and_ablations_are_single_combinations(tmp_path):
    items = grid_of(
        """
        settings = ["clean"]
        [ablations.gentle]
        method = "fedgr"
        set = { lambda_b = 0.5, refine = false }
        [sweeps.weights]
        method = "fedgr"
        set = { lambda_b = [1.0, 2.0], lambda_r = [0.1, 0.2] }
        """,
        tmp_path,
    )
    assert [item.label for item in items] == [
        "fedgr [gentle]",
        "fedgr",
        "fedgr lambda_r=0.2",
        "fedgr lambda_b=2",
        "fedgr lambda_b=2, lambda_r=0.2",
    ]
    assert [item.request.label for item in items] == ["fedgr [gentle]", None, None, None, None]
    assert items[0].config.hyperparameters["refine"] is False
    assert items[4].config.hyperparameters["lambda_r"] == 0.2


def test_the_same_run_asked_for_twice_is_one_run(tmp_path):
    text = """
        settings = ["clean"]
        methods = ["fedprox"]
        [sweeps.mu]
        method = "fedprox"
        set = { mu = [1.0, 0.1] }
        """
    assert [item.label for item in grid_of(text, tmp_path)] == ["fedprox", "fedprox mu=0.1"]


def test_values_of_a_method_reach_its_variants_but_do_not_undo_them(tmp_path):
    text = """
        settings = ["clean"]
        methods = ["fedgr", "fedgr/no-ema"]
        [set.fedgr]
        lambda_b = 2.0
        lambda_r = 0.3
        """
    whole, without = (item.config.hyperparameters for item in grid_of(text, tmp_path))
    assert (whole["lambda_b"], whole["lambda_r"]) == (2.0, 0.3)
    assert (without["lambda_b"], without["lambda_r"]) == (0.0, 0.3)


def test_presets_are_an_axis_and_one_of_them_may_be_given_alone(tmp_path):
    both = grid_of(GOOD + 'presets = ["quick", "paper"]\ndatasets = ["cifar10"]', tmp_path)
    assert [item.config.preset for item in both] == ["quick", "paper"]
    assert [item.title for item in both] == [
        "fedavg · cifar10 · iid · clean · s1",
        "fedavg · cifar10 · iid · clean · paper · s1",
    ]
    (alone,) = grid_of(GOOD + 'preset = "paper"\ndatasets = ["cifar10"]', tmp_path)
    assert alone.config == both[1].config


def test_the_first_seed_of_everything_comes_first(tmp_path):
    items = grid_of('settings = ["clean", "sym-1.0"]\nmethods = ["fedavg"]\nseeds = [1, 2]', tmp_path)
    assert [item.config.seed for item in items] == [1, 1, 2, 2]


def test_the_folder_of_a_run_is_known_without_its_data(tmp_path):
    arrays = {"train_x": np.zeros((60, 8, 8), np.uint8), "train_y": np.arange(60) % 3}
    np.savez(tmp_path / "own.npz", **arrays, test_x=arrays["train_x"], test_y=arrays["train_y"])
    for dataset in ("digits", f"npz:{tmp_path}/./own.npz"):
        training = {"model": "tiny-cnn", "clients": 2}
        request = Request("fedgr/no-ema", "sym-1", dataset, "dir-1", training=training, device="cpu")
        assert describe(request)[0] == prepare(request).config


def test_the_cost_is_that_of_fedavg(tmp_path):
    (item,) = grid_of(f'settings = ["clean"]\nmethods = ["fedavg"]\n{TINY}', tmp_path)
    assert fedavg_samples(item.config) == 2 * 2 * 50 * 1  # rounds, clients of a round, samples, epochs
    record = flnl("run", *_as_options(item), "--json").json
    assert record["forward"] == record["backward"] == 200
    assert TRAIN_IMAGES["digits"] == len(prepare(item.request).dataset.train_y)


def _as_options(item):
    training = item.request.training
    pairs = [(f"--{key}", value) for key, value in training.items()]
    asked = [
        ("--method", item.config.method),
        ("--setting", item.config.setting),
        ("--out", item.request.out),
    ]
    return [part for pair in [*pairs, *asked] for part in pair]


# -- mistakes ----------------------------------------------------------------------------------------
GOOD = 'methods = ["fedavg"]\nsettings = ["clean"]\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("methods = [", "is not TOML"),
        (GOOD + 'setings = ["clean"]', "unknown key 'setings'; did you mean 'settings'?"),
        ('methods = ["fedavgg"]\nsettings = ["clean"]', "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ('methods = ["fedavg"]\nsettings = ["symm-1.0"]', "did you mean 'sym-1.0'?"),
        ('methods = ["fedavg"]', "settings must be a list of names"),
        ('settings = ["clean"]', "methods must be given, unless there are ablations or sweeps"),
        (GOOD + 'partitions = ["idd"]', "did you mean 'iid'?"),
        (GOOD + 'datasets = ["cifar1"]', "did you mean 'cifar10'?"),
        (GOOD + 'preset = "quik"', "did you mean 'quick'?"),
        (GOOD + 'preset = "quick"\npresets = ["paper"]', "preset must be left out where presets are given"),
        (GOOD + 'presets = ["paper", "qick"]', "unknown preset 'qick'; did you mean 'quick'?"),
        (GOOD + "preset = 1", "preset must be a text"),
        (GOOD + "seeds = [1, 1]", "seeds must be a list without repetition, but 1 is there twice"),
        (GOOD + "seeds = [-1]", "seeds must be a list of whole numbers from 0"),
        (GOOD + 'seeds = ["1"]', "seeds must be a list of whole numbers from 0"),
        (GOOD + "[training]\nround = 2", "unknown key 'round' in [training]; did you mean 'rounds'?"),
        (GOOD + '[training]\nrounds = "2"', "training.rounds must be of type int, not '2'"),
        (GOOD + "[training]\nrounds = 0", "rounds is 0, but must be a whole number from 1"),
        (GOOD + "[set.fedavg]\nvew = 1", "did you mean 'view'?"),
        (GOOD + "[set.fedprox]\nmu = 1", "[set.fedprox] changes a method that is not in the suite"),
        (GOOD + "[set.fedpro]\nmu = 1", "unknown method 'fedpro'; did you mean 'fedprox'?"),
        (GOOD + "[sweeps.a]\nset = {mu = [1]}", "sweeps.a.method must be the name of a method"),
        (
            GOOD + '[sweeps.a]\nmethod = "fedprox"\nset = {mu = []}',
            "sweeps.a.set.mu must be a value or a list",
        ),
        (GOOD + '[sweeps.a]\nmethod = "fedprox"\nsets = {mu = 1}', "did you mean 'set'?"),
        (GOOD + '[ablations.a]\nmethod = "fedprox"\nset = {mu = [1]}', "ablations.a.set.mu must be a number"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(text, expected, tmp_path):
    file = tmp_path / "mistake.toml"
    file.write_text(text)
    done = flnl("suite", file, "--out", tmp_path / "runs")
    assert (done.code, done.out, len(done.errors)) == (2, "", 1)
    assert done.errors[0].startswith(f"flnl-bench: {file}")
    assert expected in done.errors[0]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.toml"], "there is no suite file nowhere.toml"),
        ([BENCHMARKS / "smoke.toml", "--executor", "slrum"], "did you mean 'slurm'?"),
        ([BENCHMARKS / "smoke.toml", "--jobs", "0"], "invalid value for '--jobs'"),
        ([BENCHMARKS / "smoke.toml", "--device", "gpu"], "unknown device 'gpu'"),
        (
            [BENCHMARKS / "smoke.toml", "--executor", "slurm", "--slurm", "gpu"],
            "--slurm 'gpu': expected KEY=VALUE",
        ),
        ([BENCHMARKS / "smoke.toml", "--slurm", "time=9"], "--slurm needs --executor slurm"),
        (
            [BENCHMARKS / "smoke.toml", "--executor", "slurm", "--runs-per-gpu", "2"],
            "--runs-per-gpu: Slurm gives every run a GPU of its own",
        ),
    ],
)
def test_a_mistake_in_the_command_is_one_line(arguments, expected, tmp_path):
    done = flnl("suite", *arguments, "--out", tmp_path)
    assert (done.code, len(done.errors)) == (2, 1)
    assert expected in done.errors[0]


@pytest.mark.parametrize(("executor", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named_with_its_installation(executor, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    done = flnl("suite", BENCHMARKS / "smoke.toml", "--executor", executor, "--out", tmp_path)
    assert done.code == 2
    assert done.errors == [
        f"flnl-bench: --executor {executor} needs {'Ray' if module == 'ray' else module}: "
        f"pip install 'flnl-bench[{executor}]'"
    ]


def test_data_that_are_missing_are_told_before_anything_is_run(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(GOOD + f'datasets = ["npz:{tmp_path}/none.npz"]')
    done = flnl("suite", file, "--out", tmp_path / "runs")
    assert (done.code, len(done.errors)) == (3, 1)


def test_the_example_of_the_documentation_is_a_suite(tmp_path):
    text = (BENCHMARKS.parent / "docs" / "suites.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    assert len(grid_of(example, tmp_path)) == (3 + 1 + 6 - 1) * 2 * 2 * 3  # a sweep passes the defaults


# -- dry run -----------------------------------------------------------------------------------------
def test_a_dry_run_tells_runs_and_cost_and_writes_nothing(tmp_path):
    out = tmp_path / "runs"
    plan = flnl("suite", BENCHMARKS / "paper-cifar10.toml", "--dry-run", "--json", "--out", out).json
    assert plan["counts"] == {"done": 0, "running": 0, "waiting": 378, "failed": 0}
    # 500 rounds × 10 clients × 500 samples × 10 epochs, 378 times
    assert plan["fedavg_samples"] == 378 * 500 * 10 * 500 * 10
    text = flnl("suite", BENCHMARKS / "paper-cifar10.toml", "--dry-run", "--out", out).out
    for word in (*NINE, "dir-0.3", "378", "9.4 G", "as FedAvg would take"):
        assert word in text
    assert not out.exists()


# -- claims ------------------------------------------------------------------------------------------
def test_a_run_has_one_owner_at_a_time(tmp_path):
    with claimed(tmp_path) as claim:
        claim.check()
        assert owner(tmp_path) == f"process {os.getpid()} on {claim.about['host']}"
        with pytest.raises(Busy, match=f"process {os.getpid()}"), claimed(tmp_path):
            pass
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def leave_claim(folder, age, **about):
    """A claim as a process would leave it that died `age` seconds ago, without its lock."""
    path = folder / ".claim"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "theirs", **about}))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


def test_the_claim_of_another_machine_counts_until_it_is_stale(tmp_path):
    leave_claim(tmp_path, STALE - 60)
    assert owner(tmp_path) == "process 1 on elsewhere"
    with pytest.raises(Busy, match="process 1 on elsewhere"), claimed(tmp_path):
        pass
    leave_claim(tmp_path, STALE + 60)
    assert owner(tmp_path) is None
    with claimed(tmp_path) as claim:
        claim.check()


def test_the_claim_of_a_dead_process_of_this_machine_is_taken_over_at_once(tmp_path):
    with claimed(tmp_path) as claim:
        here = claim.about["host"]
    dead = subprocess.Popen(["true"])
    dead.wait()
    leave_claim(tmp_path, 0, host=here, pid=dead.pid)
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def test_an_owner_that_was_taken_over_finds_out_and_leaves_the_claim_alone(tmp_path):
    with claimed(tmp_path) as claim:
        leave_claim(tmp_path, 0)
        with pytest.raises(Busy):
            claim.check()
    assert owner(tmp_path) == "process 1 on elsewhere"


def test_a_torn_claim_is_no_claim(tmp_path):
    (tmp_path / ".claim").write_text('{"host": "els')
    with claimed(tmp_path):
        pass


def test_a_claim_that_is_let_go_while_it_is_read_is_no_claim(tmp_path, monkeypatch):
    read = claim_module._read

    def read_and_lose(path):
        about = read(path)
        if about and about["host"] == "elsewhere":
            path.unlink()
        return about

    leave_claim(tmp_path, 0)
    monkeypatch.setattr(claim_module, "_read", read_and_lose)
    with claimed(tmp_path) as claim:
        claim.check()


class Beats:
    """An event that is set at its third look, and does not wait."""

    def __init__(self, before):
        self.before, self.waits = before, []

    def wait(self, seconds):
        self.before(len(self.waits))
        self.waits.append(seconds)
        return len(self.waits) == 3


def test_the_heartbeat_keeps_a_claim_fresh_until_it_is_released(tmp_path):
    claim, ages = Claim(tmp_path), []

    def age(_):
        ages.append(claim.path.stat().st_mtime)
        os.utime(claim.path, (0, 0))

    claim.path.write_text(json.dumps(claim.about))
    claim._released = Beats(age)
    claim._beat()
    assert claim._released.waits == [BEAT] * 3
    assert all(then > 0 for then in ages)  # touched after each wait but the last
    assert claim.path.stat().st_mtime == 0


def test_the_heartbeat_leaves_the_claim_of_another_alone(tmp_path):
    claim = Claim(tmp_path)
    leave_claim(tmp_path, STALE + 60)
    before = (tmp_path / ".claim").stat().st_mtime
    claim._released = Beats(lambda _: None)
    claim._beat()
    assert (tmp_path / ".claim").stat().st_mtime == before


@pytest.fixture
def tiny_run(tmp_path):
    """A run of two rounds."""
    (item,) = grid_of(GOOD + TINY, tmp_path)
    return prepare(item.request)


def test_a_run_that_was_taken_over_while_it_was_prepared_writes_nothing(tiny_run, monkeypatch):
    path = tiny_run.folder.path

    def build(*arguments):
        leave_claim(path, 0)
        return Engine(*arguments)

    monkeypatch.setattr("flnl_bench.runner.Engine", build)
    with pytest.raises(Busy, match="process 1 on elsewhere"):
        tiny_run.play()
    assert {file.name for file in path.iterdir()} <= {".claim", ".lock"}


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_was_taken_over_between_rounds_writes_no_more(tiny_run, rounds):
    path, before = tiny_run.folder.path, {}

    def take_over(row):
        if row["round"] == rounds - 1:
            leave_claim(path, 0)
            before.update({file: file.read_bytes() for file in path.iterdir() if file.is_file()})

    with pytest.raises(Busy, match="process 1 on elsewhere"):
        tiny_run.play(progress=take_over)
    after = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert {**before, path / ".lock": b""} == {**after, path / ".lock": b""}
    assert len(rounds_of(path)) == rounds


def test_a_run_that_was_taken_over_and_then_broke_leaves_the_record_alone(tiny_run):
    def take_over(row):
        leave_claim(tiny_run.folder.path, 0)
        raise RuntimeError("broke")

    with pytest.raises(RuntimeError, match="broke"):
        tiny_run.play(progress=take_over)
    assert tiny_run.folder.read()["status"] == "running"


# -- files that are not ours in a run's place --------------------------------------------------------
@pytest.mark.parametrize(
    "record",
    ['{"schema": 1, "status": "done"}', '{"schema": 1, "status": "failed"}', "[]", '{"schema": 1, "stat'],
)
@pytest.mark.parametrize("row", ["", '{"round": null, "seconds": "long"}\n', '{"round": NaN}\n', "[1]\n"])
def test_a_foreign_record_is_neither_done_nor_a_crash(record, row, tmp_path):
    (item,) = grid_of(GOOD + TINY, tmp_path)
    item.folder.create()
    (item.folder.path / "run.json").write_text(record)
    item.folder.rounds_file.write_text(row)
    assert look(item) == State("waiting")
    assert Board.of([item]).seconds_left() is None


def test_a_run_is_played_in_the_place_of_a_foreign_record(tiny_run):
    tiny_run.folder.create()
    (tiny_run.folder.path / "run.json").write_text('{"schema": 1, "status": "done"}')
    record = tiny_run.play()
    assert (record["status"], record["resumed"], len(rounds_of(tiny_run.folder.path))) == ("done", 0, 2)


# -- the live table ----------------------------------------------------------------------------------
def test_the_live_table_fits_a_small_terminal(tmp_path):
    seeds = ", ".join(map(str, range(30)))
    text = f'settings = ["clean"]\nseeds = [{seeds}]\n[ablations.gentle]\nmethod = "fedgr"\n'
    items = grid_of(text + "set = { lambda_b = 0.5 }", tmp_path)
    broken = State("failed", 3, 12.5, 60.0, "RuntimeError: " + "long " * 20)
    states = [broken, State("running", 4, 50.0, 60.0), *[State("waiting")] * 28]
    board = Board(dict(zip(items, states, strict=True)))
    console = Console(file=io.StringIO(), width=80, height=24, markup=False)
    console.print(picture(board, console.height))
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 23
    assert "0 done · 1 running · 28 waiting · 1 failed" in lines[-1]
    assert "left" in lines[-1]
    failed = next(line for line in lines if "12.50" in line)
    assert "fedgr [gentle]" in failed
    assert "failed: Runtime" in failed
    assert "…" in failed


# -- room --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("jobs", "cpus", "expected"), [(1, 2.0, 2), (3, 1.0, 3), (4, 0.5, 2), (1, 0.0, 1), (3, 1.5, 5)]
)
def test_a_ray_cluster_of_its_own_has_room_for_the_jobs(jobs, cpus, expected):
    assert cpus_of(jobs, cpus) == expected
    assert cpus_of(None, 1000.0) == 1000


class NoRay:
    """Ray without a cluster; what it is asked for is kept."""

    def __init__(self):
        self.started, self.options = {}, {}

    def init(self, address=None, **options):
        if address:
            raise ConnectionError
        self.started = options

    def remote(self, **options):
        self.options = options
        return lambda function: function

    def cluster_resources(self):
        return {"CPU": self.started["num_cpus"]}

    def wait(self, tasks, num_returns, timeout):
        return [], []


def test_ray_gets_room_for_a_run_repeats_nothing_itself_and_is_not_asked_without_pause(monkeypatch):
    ray, pauses = NoRay(), []
    monkeypatch.setattr(on_ray, "_import_ray", lambda: ray)
    monkeypatch.setattr(on_ray.time, "sleep", pauses.append)
    executor = on_ray.OnRay(1, cpus=2.0)
    assert (ray.started["num_cpus"], ray.options["max_retries"], executor.room) == (2, 0, 1)
    assert executor.wait() == []
    assert pauses == [executor.tick]


@pytest.mark.parametrize(
    ("jobs", "cpus", "gpus", "expected"),
    [(None, 1.0, 0.0, 16), (4, 1.0, 0.0, 4), (None, 2.0, 0.5, 4), (None, 32.0, 0.0, 1), (3, 0.0, 0.0, 3)],
)
def test_the_room_of_a_ray_cluster_is_its_own_not_that_of_this_machine(jobs, cpus, gpus, expected):
    assert room({"CPU": 16.0, "GPU": 2.0}, jobs, cpus, gpus) == expected


def test_run_and_suite_respect_the_same_claim(tmp_path):
    (item,) = grid_of(GOOD + TINY, tmp_path)
    run = prepare(item.request)
    run.folder.create()
    with claimed(run.folder.path), pytest.raises(BadInput, match="is working on"):
        run.play()
