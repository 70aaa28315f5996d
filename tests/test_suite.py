"""Suite files, the grids they make, and what is shown and planned of them."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import flnl
from rich.console import Console
from suite_grids import GOOD, TINY, grid_of
from synthetic_runs import round_row, write_run

from flnl_bench.cli.suite import live_table
from flnl_bench.data import DATASETS
from flnl_bench.errors import BadInput
from flnl_bench.results.run_record import read_record
from flnl_bench.running.options import RunOptions
from flnl_bench.running.resolve import make_config, prepare
from flnl_bench.suite import launchers
from flnl_bench.suite.grid import make_grid
from flnl_bench.suite.launchers import capacity, cpus_of
from flnl_bench.suite.progress import (
    Progress,
    SuiteProgress,
    _probe,
    code_warnings,
    estimate_time,
    fedavg_samples,
)
from flnl_bench.suite.scheduler import worker_arguments
from flnl_bench.suite.suite_file import make_suite, read_suite, shipped_suites

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


# -- shipped files -----------------------------------------------------------------------------------
# Runs: methods × settings × partitions × seeds; the default of FedGR is in each of its four sweeps.
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("tables/fedgr-cifar10", 9 * 7 * 2 * 3),
        ("tables/fedgr-cifar100", 9 * 7 * 2 * 3),
        ("tables/fedgr-clothing1m", 8 * 1 * 2 * 3),
        ("tables/fedgr-ablations", 9 * 3 * 2 * 3),
        ("tables/fedgr-hyperparameters", (4 * 3 - 3) * 3 * 2 * 3),
        ("quick-digits", 12 * 5 * 3 * 10),
        ("quick-fashion-mnist", 12 * 2 * 3 * 3),
        ("more-digits", 31 * 3 * 3 * 3),
        ("medium-cifar10", 6 * 4),
        ("tables/fedcorr-cifar10", 6 * 4 * 2 * 3),
        ("tables/fedcorr-cifar100", 6 * 4 * 2 * 3),
        ("tables/fedfixer-cifar10", 6 * 3 * 2 * 3),
        ("tables/fnbench-cifar10", 19 * 3 * 2 * 3),
        ("tables/fnbench-cifar10n", 15 * 1 * 2 * 3),
        ("tables/fedrg", 6 * 4 * 1 * 3 * 3),
        ("tables/fedsir", 6 * 2 * 2 * 2 * 3),
        ("tables/fedefc", 5 * 2 * 2 * 2 * 3),
        ("tables/fednoro", 6 * 2 * 1 * 3),
        ("fedgr-switches", 10 * 2 * 2 * 3),
        ("fedgr-warmup", 6 * 2 * 5),
        ("feddiv-order", 4 * 6 * 3),
        ("smoke", 3 * 2 * 2),
    ],
)
def test_every_shipped_suite_is_valid_and_has_its_runs(name, runs, tmp_path):
    suite = read_suite(Path(name))
    assert suite.name == name
    assert len(make_grid(suite, out=tmp_path)) == runs


def test_a_table_says_what_it_lacks_and_may_have_another_preset(tmp_path):
    rows = {row["name"]: row for row in flnl("list", "suites", "--json").json["suites"]}
    assert rows["tables/fnbench-cifar10"]["missing"].keys() == {"FedELR", "AGNews"}
    assert "Missing: Ditto: tests personal models" in rows["tables/fedefc"]["description"]
    assert "Missing" not in rows["tables/fedgr-cifar10"]["description"]
    ask = ["suite", "tables/fedefc", "--dry-run", "--json", "--out", tmp_path]
    assert {run["preset"] for run in flnl(*ask).json["runs"]} == {"paper"}
    assert {run["preset"] for run in flnl(*ask, "--preset", "quick").json["runs"]} == {"quick"}
    assert "unknown preset 'quik'" in flnl(*ask, "--preset", "quik").errors[0]


def test_no_shipped_suite_is_left_out():
    assert len(shipped_suites()) == 22


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_papers_tables_have_its_axes(name):
    suite = read_suite(Path(f"tables/fedgr-{name}"))
    assert (list(suite.methods), suite.seeds) == (NINE, (1, 13, 42))
    assert list(suite.cells) == [
        (partition, setting) for partition in ("iid", "dir-0.3") for setting in SEVEN
    ]


def test_a_grid_goes_seed_by_seed_and_then_through_its_cells_in_their_order(tmp_path):
    text = 'seeds = [3, 1]\nmethods = ["fedavg", "fedprox"]\ncells = ["iid sym-1.0", "shard-2 clean"]'
    suite = make_suite(tomllib.loads(text))
    assert (suite.partitions, suite.settings) == (("iid", "shard-2"), ("sym-1.0", "clean"))
    plans = [planned.config for planned in grid_of(text, tmp_path)]
    assert [(c.seed, c.partition, c.setting, c.method) for c in plans] == [
        (seed, partition, setting, method)
        for seed in (3, 1)
        for partition, setting in (("iid", "sym-1.0"), ("shard-2", "clean"))
        for method in ("fedavg", "fedprox")
    ]


def test_the_example_of_the_documentation_is_a_suite(tmp_path):
    text = (Path(__file__).parents[1] / "docs" / "suites.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    assert len(grid_of(example, tmp_path)) == (3 + 1 + 6 - 1) * 2 * 2 * 3  # a sweep passes the defaults


# -- the grid ----------------------------------------------------------------------------------------
def test_sweeps_are_products_and_ablations_are_single_combinations(tmp_path):
    plans = grid_of(
        """
        settings = ["clean"]
        [ablations.gentle]
        method = "fedgr"
        set = { lambda_b = 0.5, refine = false }
        [sweeps.weights]
        method = "fedgr"
        set = { lambda_b = [1.0, 2.0], temperature = [0.5, 1.0] }
        """,
        tmp_path,
    )
    assert [planned.label for planned in plans] == [
        "fedgr [gentle]",
        "fedgr",
        "fedgr temperature=1",
        "fedgr lambda_b=2",
        "fedgr lambda_b=2, temperature=1",
    ]
    assert [planned.options.label for planned in plans] == ["fedgr [gentle]", None, None, None, None]
    assert plans[0].config.hyperparameters["refine"] is False
    assert plans[4].config.hyperparameters["temperature"] == 1.0


def test_the_same_run_asked_for_twice_is_one_run(tmp_path):
    text = """
        settings = ["clean"]
        methods = ["fedprox"]
        [sweeps.mu]
        method = "fedprox"
        set = { mu = [1.0, 0.1] }
        """
    assert [planned.label for planned in grid_of(text, tmp_path)] == ["fedprox", "fedprox mu=0.1"]


def test_values_of_a_method_reach_its_variants_but_do_not_undo_them(tmp_path):
    text = """
        settings = ["clean"]
        methods = ["fedgr", "fedgr/no-ema"]
        [set.fedgr]
        lambda_b = 2.0
        lambda_r = 0.3
        """
    whole, without = (planned.config.hyperparameters for planned in grid_of(text, tmp_path))
    assert (whole["lambda_b"], whole["lambda_r"]) == (2.0, 0.3)
    assert (without["lambda_b"], without["lambda_r"]) == (0.0, 0.3)


def test_presets_are_an_axis_and_one_of_them_may_be_given_alone(tmp_path):
    both = grid_of(GOOD + 'presets = ["quick", "paper"]\ndatasets = ["cifar10"]', tmp_path)
    assert [planned.config.preset for planned in both] == ["quick", "paper"]
    assert [planned.title for planned in both] == [
        "fedavg · cifar10 · iid · clean · s1",
        "fedavg · cifar10 · iid · clean · paper · s1",
    ]
    (alone,) = grid_of(GOOD + 'preset = "paper"\ndatasets = ["cifar10"]', tmp_path)
    assert alone.config == both[1].config


def test_the_first_seed_of_everything_comes_first(tmp_path):
    plans = grid_of('settings = ["clean", "sym-1.0"]\nmethods = ["fedavg"]\nseeds = [1, 2]', tmp_path)
    assert [planned.config.seed for planned in plans] == [1, 1, 2, 2]


def test_the_folder_of_a_run_is_known_without_its_data(tmp_path):
    arrays = {"train_x": np.zeros((60, 8, 8), np.uint8), "train_y": np.arange(60) % 3}
    np.savez(tmp_path / "own.npz", **arrays, test_x=arrays["train_x"], test_y=arrays["train_y"])
    for dataset in ("digits", f"npz:{tmp_path}/./own.npz"):
        training = {"model": "tiny-cnn", "clients": 2}
        options = RunOptions("fedgr/no-ema", "sym-1", dataset, "dir-1", training=training, device="cpu")
        assert make_config(options)[0] == prepare(options).config


def test_the_cost_is_that_of_fedavg(tmp_path):
    (planned,) = grid_of(f'settings = ["clean"]\nmethods = ["fedavg"]\n{TINY}', tmp_path)
    assert fedavg_samples(planned.config) == 2 * 2 * 50 * 1  # rounds, clients per round, samples, epochs
    record = flnl("run", *_as_options(planned), "--json").json
    assert record["forward"] == record["backward"] == 200
    assert DATASETS["digits"].train_images == len(prepare(planned.options).dataset.train_y)


def _as_options(planned):
    options = planned.options
    values = {**options.training, "method": options.method, "setting": options.setting, "out": options.out}
    return [part for name, value in values.items() for part in (f"--{name}", value)]


# -- dry run -----------------------------------------------------------------------------------------
def test_a_dry_run_prints_runs_and_cost_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("flnl_bench.suite.progress.PROBE_SECONDS", 0.0)  # one step is enough here
    monkeypatch.setattr("flnl_bench.suite.progress.PROBE_BATCH", 2)
    out = tmp_path / "runs"
    plan = flnl("suite", "tables/fedgr-cifar10", "--dry-run", "--json", "--out", out).json
    assert plan["counts"] == {"done": 0, "running": 0, "waiting": 378, "failed": 0}
    # 500 rounds × 10 clients × 500 samples × 10 epochs, 378 times
    assert plan["fedavg_samples"] == 378 * 500 * 10 * 500 * 10
    text = flnl("suite", "tables/fedgr-cifar10", "--dry-run", "--out", out).out
    for word in (*NINE, "dir-0.3", "378", "9.4 G", "of FedAvg"):
        assert word in text
    assert not out.exists()


# -- the live table ----------------------------------------------------------------------------------
def test_the_live_table_fits_a_small_terminal(tmp_path):
    seeds = ", ".join(map(str, range(30)))
    text = f'settings = ["clean"]\nseeds = [{seeds}]\n[ablations.gentle]\nmethod = "fedgr"\n'
    plans = grid_of(text + "set = { lambda_b = 0.5 }", tmp_path)
    broken = Progress("failed", last_round=round_row(2, 12.5), error="RuntimeError: " + "long " * 20)
    running = Progress("running", last_round=round_row(3, 50.0))
    states = [broken, running, *[Progress("waiting")] * 28]
    suite = SuiteProgress(dict(zip(plans, states, strict=True)))
    console = Console(file=io.StringIO(), width=80, height=24, markup=False)
    console.print(live_table(suite, console.height))
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 23
    assert "0 done · 1 running · 28 waiting · 1 failed" in lines[-1]
    assert "left" in lines[-1]
    failed = next(line for line in lines if "12.50" in line)
    assert "fedgr [gentle]" in failed
    assert "failed: Runtime" in failed
    assert "…" in failed


# -- how long a suite will take ----------------------------------------------------------------------
def test_the_time_of_a_suite_is_known_from_finished_runs(tmp_path):
    write_run(tmp_path, setting="clean", training={"rounds": 4})  # each of half a second
    plans = grid_of(GOOD + "[training]\nrounds = 8\n", tmp_path)
    time_left = estimate_time(SuiteProgress.of(plans), tmp_path, jobs=2)
    assert time_left.seconds == pytest.approx(4.0)
    assert time_left.source == f"1 finished run in {tmp_path}"


def test_runs_of_another_machine_do_not_give_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr("flnl_bench.suite.progress._probe", lambda config: 0.001)
    file = write_run(tmp_path, setting="clean", training={"rounds": 4}) / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"imported": {"file": "theirs.zip"}}))
    time_left = estimate_time(SuiteProgress.of(grid_of(GOOD + TINY, tmp_path)), tmp_path, jobs=2)
    assert "finished run" not in time_left.source


@pytest.mark.parametrize(
    ("name", "shape"), [("digits", (1, 8, 8)), ("mnist", (1, 28, 28)), ("cifar100", (3, 32, 32))]
)
def test_a_probe_has_images_of_the_size_of_the_data_set(name, shape, tmp_path, monkeypatch):
    asked = []

    def network(model, channels, classes, norm):
        asked.append(channels)
        first = torch.nn.Flatten()
        first.register_forward_pre_hook(lambda module, inputs: asked.append(tuple(inputs[0].shape[1:])))
        return torch.nn.Sequential(first, torch.nn.LazyLinear(classes))

    monkeypatch.setattr("flnl_bench.suite.progress.PROBE_SECONDS", 0.0)
    monkeypatch.setattr("flnl_bench.models.make_network", network)
    (plan,) = grid_of(f'methods = ["fedavg"]\nsettings = ["clean"]\ndatasets = ["{name}"]', tmp_path)
    assert _probe(plan.config) > 0
    assert asked[0] == shape[0]
    assert set(asked[1:]) == {shape}


def test_without_finished_runs_a_probe_gives_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr("flnl_bench.suite.progress._probe", lambda config: 0.001)
    plans = grid_of(GOOD + TINY, tmp_path)
    time_left = estimate_time(SuiteProgress.of(plans), tmp_path / "none", jobs=2)
    assert time_left.seconds == pytest.approx(0.001 * 2 * 2 * 50)  # rounds, clients, samples
    assert "probe" in time_left.source


# -- changed code ------------------------------------------------------------------------------------
def test_a_suite_warns_about_runs_that_other_code_has_made(tmp_path, monkeypatch):
    digests = ("old", "new")
    old, new = (read_record(write_run(tmp_path / digest, code={"method": digest})) for digest in digests)
    plans = grid_of('methods = ["fedavg"]\nsettings = ["clean"]\nseeds = [1, 2, 3]', tmp_path)
    runs = dict(zip(plans, [Progress("done", old), Progress("done", new), Progress("waiting")], strict=True))
    monkeypatch.setattr("flnl_bench.results.provenance.code_digests", lambda *_: {"method": "new"})
    (warning,) = code_warnings(runs)
    assert warning.startswith("the code of fedavg has changed since 1 of the runs were started")


# -- capacity ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("jobs", "cpus", "expected"), [(1, 2.0, 2), (3, 1.0, 3), (4, 0.5, 2), (1, 0.0, 1), (3, 1.5, 5)]
)
def test_all_jobs_fit_on_a_ray_cluster_that_the_suite_starts(jobs, cpus, expected):
    assert cpus_of(jobs, cpus) == expected
    assert cpus_of(None, 1000.0) == 1000


class NoRay:
    """Ray without a cluster, which keeps the options that it is given."""

    def __init__(self):
        self.started, self.options = {}, {}

    def init(self, address=None, **options):
        if address:
            raise ConnectionError
        self.started = options

    def remote(self, **options):
        self.options = options
        return lambda function: function

    def nodes(self):
        return [{"Alive": alive, "Resources": {"CPU": self.started["num_cpus"]}} for alive in (True, False)]

    def wait(self, tasks, num_returns, timeout):
        return [], []


def test_the_ray_launcher_reserves_cpus_turns_retries_off_and_sleeps_while_it_has_no_task(monkeypatch):
    ray, pauses = NoRay(), []
    monkeypatch.setattr(launchers, "_import_optional", lambda *names: ray)
    monkeypatch.setattr(launchers.time, "sleep", pauses.append)
    with pytest.warns(match="no machine of the cluster has CPU=2, memory=4, tpu=0.5 now"):
        launcher = launchers.RayLauncher(1, {"memory": "4", "tpu": "0.5"}, cpus=2.0)
    assert (ray.started["num_cpus"], ray.options["max_retries"], launcher.capacity) == (2, 0, 1)
    assert (ray.options["memory"], ray.options["resources"]) == (4_000_000_000, {"tpu": 0.5})
    assert launcher.wait() == []
    assert pauses == [launcher.tick]


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected"), [(1.0, 0.0, 16), (2.0, 0.5, 4), (32.0, 0.0, 0), (6.0, 0.0, 2)]
)
def test_the_capacity_of_a_ray_cluster_comes_from_its_cpus_and_gpus(cpus, gpus, expected):
    machines = [{"CPU": 10.0, "GPU": 2.0}, {"CPU": 6.0}]  # a run does not span two machines
    assert capacity(machines, {"CPU": cpus, "GPU": gpus}) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["memory=much"],
            "--ray memory=much: expected an amount above zero per run",
        ),
        (["working_dir=/none"], "--ray working_dir=/none: there is no such folder"),
    ],
)
def test_options_of_ray_are_checked(options, message, monkeypatch, tmp_path):
    monkeypatch.setattr(launchers, "_import_optional", lambda *names: NoRay())
    with pytest.raises(BadInput, match=re.escape(message)):
        launchers.RayLauncher(1, dict(option.split("=") for option in options))


def test_files_below_a_shipped_folder_are_named_relative_to_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").touch()
    monkeypatch.setenv("FLNL_PLUGINS", str(tmp_path / "mine.py"))
    (planned,) = grid_of('methods = ["fedavg"]\nsettings = ["clean"]', tmp_path)
    assert worker_arguments(planned, False, tmp_path)[2] == [Path("mine.py")]
    assert worker_arguments(planned, False)[2] == [tmp_path / "mine.py"]
    assert worker_arguments(planned, False, tmp_path)[0].options.out.is_absolute()


def test_a_worker_gets_own_data_by_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = np.zeros(4, dtype=int)
    np.savez(
        "own.npz",
        **{f"{part}_x": np.zeros((4, 8, 8), np.uint8) for part in ("train", "test")},
        train_y=labels,
        test_y=labels,
    )
    (planned,) = grid_of('methods = ["fedavg"]\nsettings = ["clean"]\ndatasets = ["npz:own.npz"]', tmp_path)
    options = worker_arguments(planned, False)[0].options
    assert (options.dataset, options.setting) == (f"npz:{tmp_path / 'own.npz'}@own.npz", "clean")
