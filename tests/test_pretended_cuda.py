"""Every method on a pretended GPU: no tensor meets one of another device, and waits keep to a budget."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedgr import FedGR
from pretended_cuda import CUDA, OnDevice, pretended_cuda

from flnl_bench import Method
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.devices import CPU, Devices, placed, sent, to_cpu
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.states import OnHost, States
from flnl_bench.methods import default_methods
from flnl_bench.results.diagnostics import ChangedBeliefs, Judge
from flnl_bench.scenario import draw_scenario
from flnl_bench.testing import TOY_TRAINING, toy_dataset, toy_engine

ROUNDS = 4
TRAINING = dataclasses.replace(
    TOY_TRAINING, clients=2, fraction=1.0, rounds=ROUNDS, epochs=1, batch_size=16, samples=None
)

# The most synchronisations in a round of two clients. A number that rises is a slower method on every GPU:
# find the line in `Device.places` before you raise it. The engine's own are three: the losses, the test, and
# whether the models are finite.
USUAL = 3
BUDGETS = {
    "fedgr": 7,
    "fl-dividemix": 13,
    "fedfixer": 6,
    "feddiv": 17,
    "fedcorr": 10,
    "fednoro": 5,
    "median": 4,
    "trimmed-mean": 4,
    "krum": 4,
    "rfa": 10,
    "fedrn": 26,
    "rofl": 6,
    "fedelc": 5,
    "jointopt": 5,
    "selfie": 5,
    "fedefc": 5,
    "forward": 7,
    "fedexp": 66,
    "feddyn": 60,
}
# The most for beliefs, diagnostics and the checkpoint of a round: the predictions, and one piece for each
# client that is judged and for all that is saved.
RECORDED = 4


def engine_of(method, state="auto"):
    data = toy_dataset(60, 20)
    scenario = draw_scenario(data, partition="iid", setting="sym-0.5", clients=2, seed=1)
    return Engine(method, data, scenario, TRAINING, 1, Devices(CUDA, state=state)), scenario


def numbers(report):
    values = dataclasses.asdict(report)
    del values["seconds"]
    return values


@pytest.mark.parametrize("name", default_methods().methods)
def test_a_method_never_mixes_devices_and_keeps_to_its_budget(name, tmp_path):
    method = default_methods().make(name, {}, {})
    with warnings.catch_warnings(action="ignore"), pretended_cuda() as device:  # of so few rounds
        engine, scenario = engine_of(method)
        assert all(isinstance(t, OnDevice) for t in engine.executor.model.state_dict().values())
        beliefs, judge, checkpoint = ChangedBeliefs(method, scenario), Judge(scenario), Checkpoint(tmp_path)
        rows = []
        for _ in range(ROUNDS if name in BUDGETS else 2):
            device.reset()
            rows.append(numbers(engine.run_round()))
            assert device.synchronisations <= BUDGETS.get(name, USUAL), (device.waits, device.places)
            device.reset()
            judge.update(beliefs.after(engine.server, engine.states_on_host, {0, 1}, engine.changed))
            judge.report([0, 1])
            engine.predict_train(np.arange(5))
            checkpoint.save(engine, rows)
            assert device.synchronisations <= RECORDED, (device.waits, device.places)
        parts, _ = checkpoint.load()
        again, _ = engine_of(method)
        again.restore(parts)
        for k, state in engine.federation.states.items():
            check_same(OnHost(again.federation.states)[k], to_cpu(state))


def check_same(one, other):
    """Compare trees bit by bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            check_same(value, other[key])


def test_the_place_of_states_changes_no_number():
    def rows(device, state):
        engine = Engine(FedGR(warmup_share=0), data, scenario, TRAINING, 1, Devices(device, state=state))
        return [numbers(engine.run_round()) for _ in range(2)]

    data = toy_dataset(60, 20)
    scenario = draw_scenario(data, partition="iid", setting="sym-0.5", clients=2, seed=1)
    expected = rows(CPU, "auto")
    assert rows(CPU, "disk") == expected
    with pretended_cuda():
        on_device = rows(CUDA, "device")
        assert rows(CUDA, "host") == rows(CUDA, "disk") == on_device
    for one, other in zip(on_device, expected, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)


def test_states_move_to_the_host_when_the_gpu_is_half_full():
    with pretended_cuda(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * 4 * 250, 1 << 30))
        states = States("auto", CUDA)
        for k, size in enumerate((100, 100, 100, 50)):
            states[k] = {"x": torch.zeros(size, device=CUDA)}
        assert [isinstance(states[k]["x"], OnDevice) for k in range(4)] == [True, True, False, True]
        states[0] = {"x": torch.zeros(10)}
        assert isinstance(states[0]["x"], OnDevice)
        states[2] = {"x": torch.zeros(90, device=CUDA)}
        assert isinstance(states[2]["x"], OnDevice)


def test_a_tree_crosses_in_one_piece_with_values_types_and_layouts():
    kernel = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    tree = {
        "mixed": [torch.arange(3), torch.tensor(True), torch.tensor([1.5], dtype=torch.float64)],
        "odd": (torch.tensor([1, 2, 3], dtype=torch.uint8), torch.randn(4, 3).t(), torch.empty(0), kernel),
        "array": np.arange(2),
        "half": torch.tensor([1.0, -2.0]).half(),
    }
    tree["again"] = tree["half"]
    with pretended_cuda() as device:
        there = sent(tree, CUDA)
        assert device.synchronisations == 0
        assert there["again"] is there["half"]
        back = sent(there)
        assert device.synchronisations == 1
        assert back["odd"][3].stride() == kernel.stride()
        assert back["odd"][1].is_contiguous()
        again = placed(placed(back, CUDA), CPU)
        assert device.synchronisations == 2
    for came in (back, again):
        for key in ("mixed", "odd"):
            for one, other in zip(came[key], tree[key], strict=True):
                assert one.dtype == other.dtype
                assert torch.equal(one, other)
        assert torch.equal(came["half"], tree["half"])


# -- faults that are planted -------------------------------------------------------------------------
class Clumsy(Method):
    """Makes one mistake."""

    name = "clumsy"
    mistake: str = "none"

    def loss(self, model, batch, client):
        losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        if self.mistake == "host weights":
            return losses * torch.ones(len(batch.y))
        if self.mistake == "host index":
            return losses.cpu()[batch.index * 0] + losses
        if self.mistake == "numpy":
            return losses * float(losses.detach().numpy().mean())
        if self.mistake == "item":
            return losses * (1.0 if losses.mean().item() < 1e9 else 0.0)
        if self.mistake == "mask":
            return losses[batch.y >= 0]
        if self.mistake == "pageable":
            return losses * torch.tensor([1.0]).to(batch.y.device)
        return losses


@pytest.mark.parametrize("mistake", ["host weights", "host index", "numpy"])
def test_a_tensor_of_another_device_is_refused(mistake):
    with pretended_cuda(), pytest.raises((RuntimeError, TypeError), match=r"device|Tensor\.cpu"):
        engine_of(Clumsy(mistake))[0].run_round()


@pytest.mark.parametrize("mistake", ["none", "item", "mask", "pageable"])
def test_a_wait_in_a_step_is_counted(mistake):
    with pretended_cuda() as device:
        engine = engine_of(Clumsy(mistake))[0]
        device.reset()
        engine.run_round()
        assert (device.synchronisations == USUAL) == (mistake == "none"), device.waits
        assert device.kernels > 100


def test_the_pretended_device_computes_what_the_cpu_computes():
    with pretended_cuda():
        report = numbers(engine_of(FedAvg())[0].run_round())
    scenario = draw_scenario(toy_dataset(60, 20), partition="iid", setting="sym-0.5", clients=2, seed=1)
    alone = Engine(FedAvg(), toy_dataset(60, 20), scenario, TRAINING, 1, Devices(CPU))
    assert report == numbers(alone.run_round())
    assert not torch.cuda.is_available()
    assert toy_engine(FedAvg()).device == CPU
