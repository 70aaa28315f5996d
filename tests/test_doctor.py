"""`flnl-bench doctor`: the result of each check, and that an error in a check does not stop the others."""

import json
import random
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
import worker_targets
from command_line import flnl

from flnl_bench.doctor import checks, machine, reproducibility, speed
from flnl_bench.doctor.check_result import CheckResult, DoctorOptions, run_check
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.methods import Methods, default_methods, load_methods
from flnl_bench.registry import Plugins, Source
from flnl_bench.running.presets import load_preset
from flnl_bench.running.resolve import protocol
from flnl_bench.testing.worlds import make_world, random_images

FEDAVG = default_methods().method_class("fedavg")


class Moody(FEDAVG):
    """FedAvg whose loss depends on a draw that no stream knows."""

    name = "moody"

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * random.random()


@pytest.fixture
def asked(tmp_path):
    return DoctorOptions("cpu", tmp_path / "runs", tmp_path / "data")


@pytest.fixture
def small(monkeypatch):
    """Two rounds of FedAvg in one process, no other processes, one tiny rate."""
    alone = Devices(torch.device("cpu"))
    monkeypatch.setattr(reproducibility, "TRIED_METHOD", "fedavg")
    monkeypatch.setattr(reproducibility, "TRIED_ROUNDS", 2)
    monkeypatch.setattr(reproducibility, "choose_devices", lambda *_, **__: alone)
    monkeypatch.setattr(reproducibility, "train_with", lambda *_: ({"loss": 1.0, "counts": {}}, ""))
    monkeypatch.setattr(speed, "rate_world", tiny_world)
    monkeypatch.setattr(checks, "SLOW_CHECKS", {"rate tiny-cnn": checks.SLOW_CHECKS["rate tiny-cnn"]})


def tiny_world(model, clients, epochs):
    return make_world(random_images(32, 1, 8), model, clients, epochs or 1)


def doctor(tmp_path, *more):
    data = tmp_path / "data"
    return flnl("doctor", "--device", "cpu", "--data-dir", data, "--out", tmp_path / "runs", *more)


# -- the command -------------------------------------------------------------------------------------
def test_a_machine_without_problems_is_a_table_of_80_columns_and_leaves_no_file(tmp_path, small, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = doctor(tmp_path)
    assert (done.code, done.errors) == (0, [])
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split("  ")[0] for line in lines if line[:1].strip()]
    assert rows == ["check", *checks.QUICK_CHECKS, *checks.SLOW_CHECKS]
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object_and_quick_measures_no_rate(tmp_path, small):
    told = doctor(tmp_path, "--json", "--quick").json
    assert (told["ok"], told["device"]) == (True, "cpu")
    assert [row["check"] for row in told["checks"]] == list(checks.QUICK_CHECKS)
    by_name = {row["check"]: row for row in told["checks"]}
    assert {row["state"] for row in told["checks"]} == {"ok"}
    assert by_name["versions"]["details"]["torch"] == torch.__version__.partition("+")[0]
    assert "equal to the bit" in by_name["resumed"]["result"]


def told_by(monkeypatch, tmp_path, check, *more):
    monkeypatch.setattr(
        checks, "QUICK_CHECKS", {"one": lambda asked: CheckResult("ok", "fine"), "other": check}
    )
    return doctor(tmp_path, "--quick", *more)


def test_a_check_that_raises_is_a_line_and_the_exit_code_is_one(tmp_path, monkeypatch):
    def broken(asked):
        raise RuntimeError("no kernel image\nis available")

    done = told_by(monkeypatch, tmp_path, broken, "--json")
    assert done.code == 1
    assert done.errors == ["flnl-bench: 1 of 2 checks failed: other"]
    assert [row["state"] for row in json.loads(done.out)["checks"]] == ["ok", "wrong"]
    assert run_check(broken, None).result == "RuntimeError: no kernel image"


def test_a_note_is_no_failure_and_its_advice_is_shown(tmp_path, monkeypatch):
    done = told_by(monkeypatch, tmp_path, lambda asked: CheckResult("note", "\x1b[2Jslow", "do this"))
    assert done.code == 0
    assert "→ do this" in done.out
    assert "\x1b[2J" not in done.out


def test_ctrl_c_is_one_line(tmp_path, monkeypatch):
    def stopped(asked):
        raise KeyboardInterrupt

    done = told_by(monkeypatch, tmp_path, stopped)
    assert (done.code, done.out, done.errors) == (130, "", ["flnl-bench: interrupted"])


# -- the machine -------------------------------------------------------------------------------------
def test_a_broken_plugin_is_wrong(asked, monkeypatch):
    plugins = Plugins()
    lame = EntryPoint("lame", "no_such_module", "flnl_bench")
    plugins.sources = {"lame": Source("lame-dist", "1.0", lame.value, lame.load)}
    monkeypatch.setattr(machine, "default_methods", lambda: load_methods(plugins))
    found = machine.list_plugins(asked)
    assert found.state == "wrong"
    assert "plugin 'lame'" in found.result
    assert "no_such_module" in found.result


def test_no_methods_at_all_are_wrong(asked, monkeypatch):
    monkeypatch.setattr(machine, "default_methods", Methods)
    assert machine.list_plugins(asked).result == "there are no methods"


def test_a_results_folder_that_cannot_be_made_is_wrong(tmp_path):
    (tmp_path / "file").write_text("")
    found = machine.results_folder(DoctorOptions("cpu", tmp_path / "file" / "runs"))
    assert found.state == "wrong"
    assert "cannot be written to" in found.result
    assert "--out" in found.advice


def test_a_gpu_that_torch_leaves_unused_is_wrong(asked, monkeypatch):
    monkeypatch.setattr(machine, "_listed_gpus", lambda: ["A100, driver 550.1"])
    monkeypatch.setattr(torch.version, "cuda", None)
    found = machine.device(asked)
    assert found.state == "wrong"
    assert "A100, driver 550.1" in found.result
    assert "built without CUDA" in found.result


def test_every_gpu_is_told_with_its_memory(tmp_path, monkeypatch):
    answers = {"device_count": 2, "mem_get_info": (6e9, 8e9), "get_device_capability": (9, 0)}
    for name, answer in {**answers, "get_device_name": "H100"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    found = machine.device(DoctorOptions("cuda", tmp_path))
    assert found.result.count("H100 (sm_90, 6.0 of 8.0 GB free)") == 2


# -- data --------------------------------------------------------------------------------------------
def save_cifar10(folder, train_y=tuple(range(10))):
    pixels = np.zeros((10, 32, 32, 3), np.uint8)
    labels = np.array(train_y)
    np.savez(folder / "cifar10.npz", train_x=pixels, train_y=labels, test_x=pixels, test_y=labels)


def states(folder):
    before = sorted(folder.rglob("*"))
    found = machine.read_datasets(DoctorOptions("cpu", folder, folder))
    assert sorted(folder.rglob("*")) == before, "something was written"
    return found, found.details["states"]


def test_data_sets_that_are_not_there_are_not_fetched(tmp_path):
    found, by_name = states(tmp_path)
    assert found.state == "ok"
    assert by_name.pop("digits") == "complete"
    assert set(by_name.values()) == {"missing"}


def test_whole_and_broken_data_sets_are_distinguishable(tmp_path, few_images):
    few_images(10, 10)
    save_cifar10(tmp_path)
    (tmp_path / "mnist.npz").write_text("torn")
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar100n_labels.npz").write_text("")
    (tmp_path / "clothing1m").mkdir()
    found, by_name = states(tmp_path)
    assert found.state == "wrong"
    assert (by_name["digits"], by_name["cifar10"], by_name["svhn"]) == ("complete", "complete", "missing")
    assert "not a readable .npz" in by_name["mnist"]
    assert "not found or corrupted" in by_name["cifar100"]
    assert "images of cifar100 are not" in by_name["cifar100n"]
    assert "noisy_label_kv.txt" in by_name["clothing1m"]


# -- equal numbers -----------------------------------------------------------------------------------
def test_a_method_that_draws_for_itself_is_found(asked, small, monkeypatch):
    monkeypatch.setattr(reproducibility, "make", lambda name: Moody())
    for check in (reproducibility.repeats, reproducibility.shares, reproducibility.resumes):
        found = check(asked)
        assert found.state == "wrong"
        assert "of round 1 is" in found.result


def test_the_methods_that_cannot_be_trusted_are_named(asked, small, monkeypatch):
    registry = Methods()
    for cls in (FEDAVG, Moody):
        registry.add("test", cls)
    monkeypatch.setattr(reproducibility, "default_methods", lambda: registry)
    found = reproducibility.try_methods(asked)
    assert found.state == "wrong"
    assert list(found.details["problems"]) == ["moody"]


def test_a_resume_that_forgets_the_weights_is_found(asked, small, monkeypatch):
    def restore(self, parts):
        self.server.round = parts["engine",]["round"]

    monkeypatch.setattr(Engine, "restore", restore)
    assert reproducibility.resumes(asked).state == "wrong"
    assert reproducibility.repeats(asked).state == "ok"


@pytest.mark.parametrize(
    ("shift", "state"), [(0.0, "ok"), (1e-5, "ok"), (0.1, "wrong"), (float("nan"), "wrong")]
)
def test_only_rounding_is_forgiven_between_cpu_and_device(shift, state):
    weights = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor(0.5)}
    found = reproducibility.rounding({**weights, "b": weights["b"] + shift}, weights)
    assert found.state == state


# -- tries in other processes ------------------------------------------------------------------------
def test_a_try_in_another_process_gives_the_round_of_this_one():
    (row,) = reproducibility.trained_rounds(
        reproducibility.make("fedavg"), Devices(torch.device("cpu")), 1, **reproducibility.SMALL_ROUND
    ).rows
    assert reproducibility.train_with("cpu", {"precision": "float32"}) == (row, "")


@pytest.mark.parametrize(
    ("loss", "counts", "state", "words"),
    [
        (1.1, {}, "ok", "differs by 1.0e-01"),
        (1.0, {"steps": 6, "replayed": 4}, "ok", "4 of 6 steps were replayed"),
        (1.1, {"steps": 6, "replayed": 4}, "wrong", "differs by 1.0e-01"),
        (1.0, {"steps": 6, "replayed": 0}, "wrong", "0 of 6 steps were replayed"),
    ],
)
def test_replayed_steps_must_be_some_and_have_the_same_loss(loss, counts, state, words):
    found = reproducibility.compared({"loss": loss, "counts": counts}, {"loss": 1.0})
    assert found.state == state
    assert words in found.result


def test_a_try_that_dies_is_a_note(asked, monkeypatch):
    monkeypatch.setattr(reproducibility, "_train", worker_targets.die)
    found = reproducibility.probe(asked, "compile", "default")
    assert (found.state, found.result) == ("note", "does not work: its process died of SIGKILL")
    assert found.advice == "do without --compile default; it is off by default"


def test_a_try_that_says_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(reproducibility, "_train", worker_targets.say_nothing)
    monkeypatch.setattr(reproducibility, "TIME_LIMIT", 0.0)
    assert reproducibility.train_with("cpu", {})[1] == "no answer within 0 s"


def test_options_of_cuda_are_not_tried_on_other_devices(asked, monkeypatch):
    monkeypatch.delattr(reproducibility, "train_with")
    assert "not tried" in reproducibility.probe(asked, "precision", "tf32").result
    assert "not tried" in reproducibility.probe(asked, "compile", "cudagraphs").result


# -- speed -------------------------------------------------------------------------------------------
def test_a_rate_is_the_images_of_a_round_by_its_shortest_time(asked, small, monkeypatch):
    monkeypatch.setattr(speed, "round_seconds", lambda engine: 0.5)
    found = speed.rate(asked, "tiny-cnn")
    assert (found.state, found.result) == ("ok", "64 images/s")
    assert found.details == {"images_per_second": 64.0}


def timings(monkeypatch, device="cpu"):
    """The timings of the preset quick with engines that do not run; a compiler fails."""

    class Idle:
        def __init__(self, training, devices):
            self.training, self.workers = training, len(devices.workers) or 1

        def close(self): ...

    def engine(world, method, devices):
        if world.training.compile == "cudagraphs":
            raise RuntimeError("no compiler\nand more")
        return Idle(world.training, devices)

    monkeypatch.setattr(speed.World, "engine", engine)
    monkeypatch.setattr(speed, "cores", lambda: 3)
    choose = speed.choose_devices
    monkeypatch.setattr(speed, "choose_devices", lambda device, **more: choose("cpu", **more))
    monkeypatch.setattr(speed, "round_seconds", lambda e: 12 / e.workers / (1 + e.training.stack / 10))
    return list(speed.tune(device, "quick", "digits"))


def test_rounds_are_timed_with_workers_stacks_and_both(monkeypatch):
    found = {timing.options: timing for timing in timings(monkeypatch)}
    assert list(found) == [
        *("", "--stack 5", "--stack 10", "--workers 2"),
        *("--stack 3 --workers 2", "--stack 5 --workers 2"),
    ]
    assert found["--stack 10"].speed == pytest.approx(2 / 1.1)
    assert [name for name, timing in found.items() if timing.same_numbers] == ["", "--workers 2"]


def test_on_a_gpu_compilers_are_timed_too_and_may_fail(monkeypatch):
    *_, default, graphs = timings(monkeypatch, "cuda")
    assert (default.options, default.speed) == ("--compile default", 1.0)
    assert (graphs.speed, graphs.problem) == (None, "RuntimeError: no compiler")


def test_timed_rounds_have_the_clients_batches_and_network_of_the_preset():
    world = speed.short_rounds(protocol(load_preset("paper"), "cifar10", {}), "cifar10")
    training = world.training
    assert (training.model, training.clients, training.batch_size) == ("resnet18", 10, 32)
    assert world.dataset.train_x.shape[1:] == (3, 32, 32)
    assert {len(rows) for rows in world.scenario.clients} == {2 * training.batch_size}


def test_the_fastest_options_are_printed_and_nothing_is_written(monkeypatch, tmp_path):
    rows = [speed.Timing("", True, 1.0), speed.Timing("--workers 2", True, 1.5)]
    rows += [speed.Timing("--stack 10", False, 2.0), speed.Timing("--compile default", False, None, "broken")]
    monkeypatch.setattr(speed, "tune", lambda device, preset, dataset: iter(rows))
    monkeypatch.chdir(tmp_path)
    done = flnl("doctor", "--tune", "quick", "--json")
    assert done.json["fastest"] == {"with the same numbers": "--workers 2", "of all": "--stack 10"}
    done = flnl("doctor", "--tune", "quick")
    assert "failed: broken" in done.out
    assert done.errors[-1].endswith("fastest of all, for FedAvg on digits with quick: --stack 10")
    assert not list(tmp_path.iterdir())
    refused = flnl("doctor", "--dataset", "digits")
    assert (refused.code, refused.errors[-1]) == (2, "flnl-bench: --dataset needs --tune")
