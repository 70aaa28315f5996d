"""Where a run computes, as --device, --devices and --workers say."""

from dataclasses import replace

import pytest
import torch
from command_line import flnl, tiny

from flnl_bench.engine import devices
from flnl_bench.engine.devices import check_precision, choose_devices
from flnl_bench.errors import BadInput
from flnl_bench.running.options import RunOptions
from flnl_bench.running.resolve import prepare

CPU = torch.device("cpu")


@pytest.fixture
def two_gpus(monkeypatch):
    """As if there were two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")


def test_one_process_is_the_default():
    assert choose_devices("cpu") == choose_devices("cpu", workers=1) == choose_devices(devices=["cpu"])
    assert choose_devices("cpu").workers == ()


def test_workers_share_the_device():
    chosen = choose_devices("cpu", workers=3)
    assert (chosen.server, chosen.workers) == (CPU, (CPU,) * 3)


def test_workers_that_would_have_nothing_to_do_are_not_started(monkeypatch):
    assert choose_devices("cpu", workers=1000, most=3).workers == (CPU,) * 3
    assert choose_devices("cpu", workers=1000, most=1).workers == ()
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    asked = RunOptions("fedavg", setting="clean", device="cpu", workers=1000)
    assert len(prepare(asked).devices.workers) == 12  # a round has 10 clients
    asked = replace(asked, training={"fraction": 0.5})
    assert len(prepare(asked).devices.workers) == 17
    asked = replace(asked, training={"clients": 5})
    assert len(prepare(asked).devices.workers) == 5


def test_every_device_gets_a_worker_and_further_ones_in_turn(two_gpus):
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    chosen = choose_devices(devices=["cuda:0", "cuda:1"])
    assert (chosen.server, chosen.workers) == (first, (first, second))
    assert choose_devices("cuda", ["cuda:0", "cuda:1"], 3).workers == (first, second, first)
    assert choose_devices(devices=["cuda:1"]).server == second


def test_unlike_gpus_do_not_share_a_run(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"kind {device.index}")
    with pytest.raises(BadInput, match="kind 0 and kind 1 do not give the same numbers"):
        choose_devices(devices=["cuda:0", "cuda:1"])


@pytest.mark.parametrize(
    ("device", "devices", "workers", "message"),
    [
        ("auto", ["cuda:0", "cpu"], None, "of different kinds"),
        ("cpu", ["cuda:0", "cuda:1"], None, "--device cpu and --devices cuda:0,cuda:1 do not agree"),
        ("auto", ["cuda:2"], None, "cuda has 2, counted from 0"),
        ("auto", ["cuda:x"], None, "there is no such device"),
        ("auto", ["cuda:0", "cuda:1"], 1, "workers is 1, but must be a whole number from 2"),
        ("auto", ["cud:0"], None, "did you mean 'cuda'"),
    ],
)
def test_what_does_not_fit_is_told(two_gpus, device, devices, workers, message):
    with pytest.raises(BadInput, match=message):
        choose_devices(device, devices, workers)


# -- bfloat16 ----------------------------------------------------------------------------------------
DEADLY = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
SAVED = f"import os\nif os.environ.get({devices.INSTRUCTIONS!r}) != 'AVX2': {DEADLY}"


@pytest.fixture
def probe(monkeypatch):
    """Puts another program in the place of the small convolution."""
    yield lambda text: (monkeypatch.setattr(devices, "BFLOAT16_PROBE", text), forget())
    forget()


def forget():
    devices.survives_bfloat16.cache_clear()


def test_a_cpu_that_dies_of_bfloat16_is_refused_before_anything_is_written(tmp_path, probe):
    probe(DEADLY)
    done = flnl(*tiny(tmp_path / "runs", "--precision", "bfloat16"))
    assert (done.code, len(done.errors)) == (2, 1)
    assert done.errors[0].endswith("this CPU cannot compute in bfloat16; use --precision float32")
    assert not (tmp_path / "runs").exists()


def test_an_instruction_set_that_would_do_is_offered(probe):
    probe(SAVED)
    with pytest.raises(BadInput, match=f"set {devices.INSTRUCTIONS}=AVX2 in the environment, or use"):
        check_precision("cpu", "bfloat16")


def test_only_bfloat16_on_a_cpu_is_probed(probe):
    probe(DEADLY)
    check_precision("cpu", "float32")
    check_precision("cuda", "bfloat16")
