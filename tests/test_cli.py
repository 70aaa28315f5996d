"""The commands as a user types them, in one process."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import flnl, interrupted, rounds_of, tiny
from synthetic_runs import write_run

import flnl_bench as fb
from flnl_bench import cli
from flnl_bench.cli.console import duration, with_prefix
from flnl_bench.cli.show import plot, squeeze
from flnl_bench.engine import pool
from flnl_bench.engine.engine import Engine

KEYS = ["method", "dataset", "partition", "setting", "preset", "seed", "rounds", "last10", "best"]
KEYS += ["run_dir", "scenario", "published"]
COSTS = ["best_round", "bytes_down", "bytes_up", "forward", "backward", "seconds", "resumed"]


# -- run ---------------------------------------------------------------------------------------------
def test_json_is_one_object_with_the_promised_keys(tmp_path):
    done = flnl(*tiny(tmp_path, "--json"))
    assert done.code == 0
    outcome = json.loads(done.out)
    assert set(KEYS + COSTS) == set(outcome)
    assert outcome["rounds"] == 3
    assert outcome["resumed"] == 0
    accuracies = [row["accuracy"] for row in rounds_of(outcome["run_dir"])]
    assert outcome["best"] == max(accuracies)
    assert outcome["last10"] == pytest.approx(statistics.fmean(accuracies))


def test_decoding_a_large_data_set_is_a_line_on_stderr_every_five_percent(tmp_path, monkeypatch):
    from flnl_bench.running import resolve

    load = resolve.load_dataset

    def decoding(name, data_dir, progress):
        for done in range(1, 201):
            progress("decoding clothing1m", done, 200)
        return load(name, data_dir)

    monkeypatch.setattr(resolve, "load_dataset", decoding)
    own_folder = ("--data-dir", tmp_path)  # whose data no test before has left in memory
    lines = [line for line in flnl(*tiny(tmp_path, *own_folder)).errors if "decoding" in line]
    assert lines == [f"flnl-bench: decoding clothing1m: {5 * step} % of 200" for step in range(1, 21)]


def test_image_net_weights_are_the_presets_choice_unless_asked_for():
    from flnl_bench.running.options import RunOptions
    from flnl_bench.running.resolve import make_config

    asked = RunOptions("fedavg", dataset="clothing1m", setting="real", preset="paper", device="cpu")
    assert make_config(asked)[0].training.pretrained
    assert not make_config(replace(asked, training={"pretrained": False}))[0].training.pretrained


def test_no_pretrained_reaches_the_record(tmp_path):
    run_dir = flnl(*tiny(tmp_path, "--no-pretrained", "--json")).json["run_dir"]
    assert json.loads((Path(run_dir) / "run.json").read_text())["config"]["training"]["pretrained"] is False


def test_two_folders_get_the_same_rounds(tmp_path):
    first, second = (flnl(*tiny(tmp_path / name, "--json")).json for name in "ab")
    assert rounds_of(first["run_dir"]) == rounds_of(second["run_dir"])
    assert first["scenario"] == second["scenario"]


def test_an_interrupted_run_says_how_to_resume_and_ends_with_the_same_numbers(tmp_path, monkeypatch):
    whole = flnl(*tiny(tmp_path / "whole", "--json")).json
    broken = interrupted(2, *tiny(tmp_path / "broken"), monkeypatch=monkeypatch)
    assert broken.code == 130
    assert broken.errors[-1] == ("flnl-bench: interrupted after round 2 of 3; the same command resumes it")
    resumed = flnl(*tiny(tmp_path / "broken", "--json"))
    assert "flnl-bench: resuming after round 2 of 3" in resumed.errors
    assert resumed.json["resumed"] == 1
    assert rounds_of(resumed.json["run_dir"]) == rounds_of(whole["run_dir"])


def test_two_learning_rates_are_two_runs(tmp_path):
    command = ["run", "--method", "fedavg", "--setting", "sym-1.0", "--rounds", 2, "--samples", 80]
    command += ["--clients", 4, "--epochs", 1, "--out", tmp_path, "--json", "--lr"]
    # Eight hexadecimal digits of the hash are the same for these two.
    first, second = (flnl(*command, lr).json for lr in (0.022903, 0.099656))
    assert first["run_dir"] != second["run_dir"]
    assert rounds_of(first["run_dir"]) != rounds_of(second["run_dir"])
    assert flnl(*command, 0.022903).json == first


def test_a_torn_line_of_rounds_is_repaired_on_resume(tmp_path, monkeypatch):
    whole = flnl(*tiny(tmp_path / "whole", "--json")).json
    interrupted(2, *tiny(tmp_path / "torn"), monkeypatch=monkeypatch)
    (file,) = (tmp_path / "torn").rglob("rounds.jsonl")
    file.write_text(file.read_text()[:-40])
    resumed = flnl(*tiny(tmp_path / "torn", "--json")).json
    assert rounds_of(resumed["run_dir"]) == rounds_of(whole["run_dir"])


def test_a_finished_run_is_found_and_only_fresh_runs_it_again(tmp_path):
    first = flnl(*tiny(tmp_path, "--json")).json
    again = flnl(*tiny(tmp_path, "--json"))
    assert any("found finished" in line and "--fresh" in line for line in again.errors)
    assert again.json == first
    rounds = Path(first["run_dir"]) / "rounds.jsonl"
    written = rounds.stat().st_mtime_ns
    fresh = flnl(*tiny(tmp_path, "--json", "--fresh"))
    assert not any("found finished" in line for line in fresh.errors)
    assert rounds.stat().st_mtime_ns != written


def test_several_seeds_give_mean_and_sample_deviation(tmp_path):
    together = flnl(*tiny(tmp_path, "--seeds", "1,13", "--json")).json
    assert together["seeds"] == [1, 13]
    values = [run["last10"] for run in together["runs"]]
    assert together["last10"] == pytest.approx(statistics.fmean(values))
    assert together["last10_std"] == pytest.approx(statistics.stdev(values))
    assert len({run["scenario"] for run in together["runs"]}) == 2
    table = flnl(*tiny(tmp_path, "--seeds", "1,13")).out
    assert "mean ± std" in table


def test_the_summary_names_scenario_results_costs_and_files(tmp_path):
    done = flnl(*tiny(tmp_path))
    for word in ("4 clients", "images", "last-10", "best", "memorised", "cost", "flnl-bench show"):
        assert word in done.out
    assert any("--preset paper --dataset cifar10" in line for line in done.errors)


def test_without_a_terminal_progress_is_plain_lines(tmp_path):
    errors = flnl(*tiny(tmp_path, "--dataset", "digits")).errors
    assert len(errors) == 3
    assert errors[0].startswith("flnl-bench: fedavg s1: round 1/3, accuracy ")


def test_set_changes_a_hyperparameter(tmp_path):
    outcome = flnl(*tiny(tmp_path, "--set", "mu=0.5", "--json", method="fedprox")).json
    assert flnl("show", outcome["run_dir"], "--json").json["config"]["hyperparameters"] == {"mu": 0.5}


def test_sigterm_is_treated_like_ctrl_c(tmp_path, monkeypatch):
    done = interrupted(1, *tiny(tmp_path), monkeypatch=monkeypatch, by=signal.SIGTERM)
    assert done.code == 130
    assert done.errors[-1].endswith("interrupted after round 1 of 3; the same command resumes it")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("where", "mistaken"), [("round", False), ("round", True), ("start", True)])
def test_a_stop_that_a_library_swallows_is_heard(tmp_path, monkeypatch, where, mistaken, stop):
    """As in C: some go on without it, some take it for a mistake of their caller."""
    owner, name = {"round": (Engine, "run_round"), "start": (pool, "lend_images")}[where]
    works = getattr(owner, name)

    def swallows(*given):
        try:
            signal.raise_signal(stop)
        except KeyboardInterrupt:
            if mistaken:
                raise TypeError("not a file") from None
        return works(*given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, swallows)
        done = flnl(*tiny(tmp_path, *(["--workers", "2"] if where == "start" else [])))
    heard = int(not mistaken)
    assert done.code == 130
    assert done.errors[-1] == (
        f"flnl-bench: interrupted after round {heard} of 3; the same command resumes it"
    )
    assert flnl(*tiny(tmp_path, "--json")).json["resumed"] == heard
    (file,) = tmp_path.rglob("run.json")
    assert json.loads(file.read_text())["status"] == "done"


def test_a_stop_is_forgotten_when_its_command_has_ended(tmp_path, monkeypatch):
    interrupted(1, *tiny(tmp_path), monkeypatch=monkeypatch, by=signal.SIGTERM)
    assert flnl(*tiny(tmp_path)).code == 0


# -- scenario ----------------------------------------------------------------------------------------
def test_an_exported_scenario_runs_like_the_generated_one(tmp_path):
    generated = flnl(*tiny(tmp_path / "a", "--partition", "dir-1.0", "--json")).json
    file = tmp_path / "sym-1.0"
    asked = ["--setting", "sym-1.0", "--partition", "dir-1.0", "--clients", 4, "--samples", 200]
    exported = flnl("scenario", "export", *asked, "-o", file)
    assert exported.out.splitlines() == [
        f"{file}.npz",
        f"{file}.json",
        f"fingerprint {generated['scenario']}",
    ]
    protocol = ["--rounds", 3, "--epochs", 1, "--fraction", 0.5]
    imported = flnl(
        "run", "--method", "fedavg", "--scenario", file, *protocol, "--out", tmp_path / "b", "--json"
    ).json
    assert rounds_of(imported["run_dir"]) == rounds_of(generated["run_dir"])
    assert imported["setting"] == "sym-1.0"
    shown = flnl("scenario", "show", "--scenario", f"{file}.npz", "--json").json
    assert shown["fingerprint"] == generated["scenario"]


def test_scenario_show_prints_every_client():
    shown = flnl("scenario", "show", "--setting", "mixed-0.5", "--clients", 100)
    lines = shown.out.splitlines()[:104]  # a title, a header, the clients, the whole, the fingerprint
    assert lines[-3].split()[0] == "99"
    assert lines[-2].startswith("100 clients (50 noisy), 1437 images")
    assert lines[-1].startswith("fingerprint ")
    twenty = flnl("scenario", "show", "--setting", "clean", "--clients", 20, "--json")
    assert len(twenty.json["per_client"]) == 20


def test_scenario_show_prints_the_spread_of_every_class():
    options = ["scenario", "show", "--setting", "clean", "--partition", "dir-0.3"]
    shown = flnl(*options, "--json").json
    assert shown["sampled"] == 10  # of 35 clients, as in the preset
    rows = shown["per_class"]
    assert [row["class"] for row in rows] == [*range(10)]
    assert sum(row["images"] for row in rows) == shown["images"] == 1437
    assert rows[9]["effective_holders"] == pytest.approx(5.5, abs=0.1)
    lines = flnl(*options).out.splitlines()
    nine = next(line.split() for line in reversed(lines) if line.split()[0] == "9")
    assert nine[:4] == ["9", str(rows[9]["images"]), str(rows[9]["holders"]), "5.5"]


# -- list and show -----------------------------------------------------------------------------------
def test_list_shows_every_kind():
    names = {kind: [row["name"] for row in rows] for kind, rows in flnl("list", "--json").json.items()}
    tables = ["methods", "datasets", "settings", "partitions", "models", "presets", "suites"]
    tables += ["trackers", "plugins"]
    assert list(names) == tables
    assert {"fedavg", "fedprox"} <= set(names["methods"])
    assert {"quick", "medium", "paper"} == set(names["presets"])
    text = flnl("list").out
    for rows in names.values():
        for name in rows:
            assert name in text


def test_list_methods_tells_hyperparameters_and_variants():
    methods = {row["name"]: row for row in flnl("list", "methods", "--json").json["methods"]}
    mu = {"type": "float", "default": 1.0, "range": "from 0"}
    assert methods["fedprox"]["hyperparameters"] == {"mu": mu}
    assert methods["fedavg"]["variants"] == {"fedavg/strong": {"view": "strong"}}


def test_presets_are_listed_with_the_protocol_of_each_dataset():
    presets = {row["name"]: row for row in flnl("list", "presets", "--json").json["presets"]}
    assert presets["paper"]["protocols"]["cifar10"]["clients"] == 100


def test_show_finds_a_run_by_path_file_and_hash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_dir = flnl(*tiny("results/runs", "--json")).json["run_dir"]
    texts = {flnl("show", name).out for name in (run_dir, f"{run_dir}/run.json", run_dir[-16:])}
    (text,) = texts
    for word in (
        "done, 3 rounds",
        "model=tiny-cnn",
        "test accuracy",
        "last-10",
        "memorised",
        "cost",
        "torch",
    ):
        assert word in text
    record = flnl("show", run_dir, "--json").json
    assert [row["round"] for row in record["rounds"]] == [0, 1, 2]


def test_show_of_an_interrupted_run_says_how_many_rounds_are_done(tmp_path, monkeypatch):
    interrupted(1, *tiny(tmp_path), monkeypatch=monkeypatch)
    (file,) = tmp_path.rglob("run.json")
    assert "interrupted, 1 of 3 rounds" in flnl("show", file).out


# -- the border --------------------------------------------------------------------------------------
def test_version():
    import flnl_bench

    assert flnl("--version").out == f"flnl-bench {flnl_bench.__version__}\n"


def test_commands_that_only_read_import_no_torch(tmp_path):
    one, other = (str(write_run(tmp_path / "runs", name)) for name in ("fedavg", "fedgr"))
    lists = ("methods", "datasets", "settings", "partitions", "models", "presets", "suites", "trackers")
    commands = [
        *(["list", kind] for kind in lists),
        ["list", "--help"],
        ["list", "runs", "--with-published"],
        ["leaderboard", "--with-published"],
        ["leaderboard", f"{tmp_path}/runs", "--against", "fedavg"],
        ["show", one],
        ["show", "preset", "quick"],
        ["compare", one, other],
        ["report", f"{tmp_path}/runs", "-o", f"{tmp_path}/site"],
        ["results", "export", f"{tmp_path}/runs", "-o", f"{tmp_path}/runs.zip"],
    ]
    code = f"""
import sys
from flnl_bench.cli import completion, main
for command in {commands}:
    try:
        main(command)
    except SystemExit as stop:
        heavy = {{"torch", "pandas", "sklearn"}} & set(sys.modules)
        if stop.code or heavy:
            sys.exit(f"{{command}}: {{stop.code}} {{heavy}}")
for name in ("methods", "settings", "partitions", "datasets", "models", "presets", "suites", "plots", "runs"):
    getattr(completion, name)("")
print({{"torch", "pandas", "sklearn"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["set()"]), done.stderr
    assert "tiny-cnn" in done.stdout


def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    code = "from flnl_bench.cli import main; main(['list', 'datasets', '--json'])"
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == ""


def test_the_handler_of_sigterm_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert signal.getsignal(signal.SIGTERM) is before


# -- text --------------------------------------------------------------------------------------------
def test_numbers_are_written_for_people():
    assert [with_prefix(n, "B") for n in (12, 1234, 5_600_000)] == ["12 B", "1.2 kB", "5.6 MB"]
    assert [duration(s) for s in (0.31, 41, 185, 7800)] == ["0.3 s", "41 s", "3 min 5 s", "2 h 10 min"]
    assert [duration(3600 * h) for h in (47, 291, 244395)] == ["47 h 0 min", "12 d 3 h", "10,183 d 3 h"]


def test_curves_fit_their_width_and_keep_their_ends():
    values = [float(i) for i in range(500)]
    assert squeeze(values, 10)[0] == 24.5
    lines = plot(values, 60)
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith(" 4")
    assert lines[-1].split() == ["round", "1", "500"]
    assert plot([50.0], 60)[-1].split() == ["round", "1"]


def test_a_run_warns_when_one_client_takes_part_in_a_round(tmp_path):
    done = flnl(*tiny(tmp_path, "--fraction", "0.1"))
    assert any("1 of 4 clients per round, because the fraction is 0.1" in line for line in done.errors)
    assert "protocol   1 of 4 clients per round" in done.out
    assert not any("clients per round" in line for line in flnl(*tiny(tmp_path)).errors)


def test_each_of_several_seeds_prints_its_result_when_it_ends(tmp_path):
    done = flnl(*tiny(tmp_path, "--seeds", "1,2"))
    seeds = [line for line in done.errors if line.startswith("flnl-bench: seed ")]
    assert [line.split(":")[1].strip() for line in seeds] == ["seed 1", "seed 2"]
    assert all("last-10" in line for line in seeds)


def test_the_next_command_has_the_path_of_a_program_that_is_not_on_the_path(tmp_path, monkeypatch):
    from flnl_bench.cli.outcome import program

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv/bin/flnl-bench"), "run"])
    assert program() == ".venv/bin/flnl-bench"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert program() == "flnl-bench"


def test_the_end_of_a_run_shows_published_numbers_of_its_cell(tmp_path):
    from flnl_bench.cli.outcome import cell_line

    flnl(*tiny(tmp_path, "--seeds", "1,2"))
    flnl(*tiny(tmp_path, method="fedprox"))
    records = fb.load_results(tmp_path).finished
    own = next(record for record in records if record.config.method == "fedprox")
    others = [record for record in records if record.config.method == "fedavg"]
    mean = (others[0].last10 + others[1].last10) / 2
    assert cell_line(own, others) == (f"published: fedavg {mean:.2f} (2 seeds); best of 1: fedavg {mean:.2f}")
    assert cell_line(own, []) is None
