"""What authors write without a second thought gives the same numbers in any order, process or restart."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flnl_bench import Method, network_weights
from flnl_bench.engine.devices import CPU, Devices, sent
from flnl_bench.engine.engine import Engine
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset, toy_engine, toy_scenario
from flnl_bench.testing.methods import check_resumes, disturbed_engine


class Habit(Method):
    """A habit of authors."""

    name = "habit"
    reference = "a test"


class LooksFirst(Habit):
    """Weighs samples by their loss under the received weights, seen through the model to be trained."""

    def on_receive(self, model, client):
        def look(batch):
            return F.cross_entropy(model(batch.x), batch.y, reduction="none")

        client.scratch["weight"] = 1 + client.map(look)

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * client.scratch["weight"][batch.index]


class KeepsItsModel(Habit):
    """Stays near its model of the visit before, which it did not copy."""

    def upload(self, model, client):
        client.state["before"] = network_weights(model)
        return {}

    def loss(self, model, batch, client):
        loss = super().loss(model, batch, client)
        if "before" in client.state:
            loss = loss + (model.head.weight - client.state["before"]["head.weight"]).square().sum()
        return loss


class SendsItsHead(Habit):
    """Sends its head beside the weights, not copied."""

    def upload(self, model, client):
        return {"head": model.head.weight}

    def aggregate(self, server, updates):
        heads = torch.stack([update.message["head"] for update in updates])
        return {**super().aggregate(server, updates), "head.weight": heads.mean(0)}


class AnswersWithItsState(Habit):
    """Answers a visit with its state, and changes it at the next one in the same round."""

    def client_state(self, client):
        return {"seen": torch.zeros(1), "counts": np.zeros(1)}

    def tell(self, client):
        client.state["seen"] += 1
        client.state["counts"] += 1
        return dict(client.state)

    def round(self, server, federation):
        answers = [federation.visit([0], self.tell)[0] for _ in range(3)]
        told = {f"{name}_{i}": float(a[name][0]) for i, a in enumerate(answers) for name in a}
        return {**super().round(server, federation), **told}


class WritesToItsInbox(Habit):
    """Uses what it got as a place to write to."""

    def server_state(self, server):
        return {"shift": torch.zeros(1), "count": np.zeros(1)}

    def inbox(self, server, client_id):
        return server.state

    def loss(self, model, batch, client):
        client.inbox["shift"] += 0.1
        client.inbox["count"] += 1
        return super().loss(model, batch, client) * (1 + client.inbox["shift"] + client.inbox["count"][0])


class StacksWeights(Habit):
    """Takes medians of stacked weights, which have lost their layout, and teaches with them."""

    def aggregate(self, server, updates):
        first = updates[0].weights
        return {name: torch.stack([u.weights[name] for u in updates]).median(0).values for name in first}

    def loss(self, model, batch, client):
        with torch.no_grad():
            taught = client.received(batch.x)
        return super().loss(model, batch, client) + (model(batch.x) - taught).square().sum(1)


class StacksTwice(StacksWeights):
    """Trains twice a round, the second time from such weights."""

    def round(self, server, federation):
        super().round(server, federation)
        return super().round(server, federation)


class WritesToItsWeights(Habit):
    """Keeps the global weights, which it changes in place, without a copy, and tells how far they moved."""

    def round(self, server, federation):
        mean = self.aggregate(server, federation.train(self.sample(server)))
        before = server.state.get("before", mean)
        for name, tensor in server.weights.items():
            tensor += (mean[name] - tensor) / 2
        moved = sum((tensor - before[name]).abs().sum() for name, tensor in server.weights.items())
        server.state["before"] = server.weights
        return {"moved": moved}


class RelabelsInPlace(Habit):
    """Starts from the given labels, and changes them where they are."""

    def client_state(self, client):
        return {"labels": client.y}

    def loss(self, model, batch, client):
        return F.cross_entropy(model(batch.x), client.state["labels"][batch.index], reduction="none")

    def upload(self, model, client):
        client.state["labels"][client.round] = 0
        return {}


class UsesOneBox(Habit):
    """Sends every client another value in the same tensor, drawn when the run began."""

    def server_state(self, server):
        return {"box": torch.zeros(1), "drawn": torch.rand(1)}

    def inbox(self, server, client_id):
        server.state["box"].fill_(client_id)
        return {"shift": server.state["box"], "drawn": server.state["drawn"]}

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * (1 + client.inbox["shift"] * client.inbox["drawn"])


class KeepsModelsOnTheServer(Habit):
    """Moves by a sum over the model before, which depends on its layout in the last digit."""

    def aggregate(self, server, updates):
        mean = super().aggregate(server, updates)
        before = server.state.get("before", server.weights)
        length = sum(tensor.sum() for tensor in before.values())
        server.state["before"] = mean
        return {name: old + (mean[name] - old) * length.cos() for name, old in server.weights.items()}


class TwoNames(Habit):
    """Has two names for one tensor and one array, and counts on it."""

    def client_state(self, client):
        tensor, array = torch.zeros(1), np.zeros(1)
        return {"a": [tensor, array], "b": [tensor, array]}

    def loss(self, model, batch, client):
        for value in client.state["a"]:
            value += 0.1
        return super().loss(model, batch, client) * (1 + sum(value.item() for value in client.state["b"]))


class Drawing(nn.Module):
    """A network with dropout."""

    def __init__(self, network):
        super().__init__()
        self.network, self.dropout = network, nn.Dropout(0.3)
        self.head = network.head

    def forward(self, x):
        return self.head(self.dropout(self.network.features(x)))


class DropsOut(Habit):
    """Trains a network that draws, and draws on the server as well."""

    def build(self, new_net):
        return Drawing(new_net())

    def aggregate(self, server, updates):
        mean = super().aggregate(server, updates)
        return {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in mean.items()}


class Permuted(Drawing):
    """A network with a buffer of whole numbers, by which it permutes features."""

    def __init__(self, network):
        super().__init__(network)
        self.register_buffer("places", torch.arange(network.head.in_features).flip(0))

    def forward(self, x):
        return self.head(self.network.features(x)[:, self.places])


class HasWholeNumbers(Habit):
    """Trains such a network, and looks at a frozen copy of it."""

    def build(self, new_net):
        return Permuted(new_net())

    def loss(self, model, batch, client):
        with torch.no_grad():
            taught = client.received(batch.x)
        return super().loss(model, batch, client) + (model(batch.x) - taught).square().sum(1)


class Counting(Drawing):
    """A network that counts its steps in a buffer, and learns less with each."""

    def __init__(self, network):
        super().__init__(network)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.steps += self.training
        return self.head(self.network.features(x)) / (1 + 0.1 * self.steps)


class HasACounter(Habit):
    """Trains such a network."""

    def build(self, new_net):
        return Counting(new_net())


HABITS = Habit.__subclasses__()


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_numbers_are_the_same_whatever_the_habit(habit):
    check_resumes(habit(), disturbed_engine)


class SendsAndStacks(UsesOneBox, StacksTwice):
    """Has both habits; its losses are scaled, for their product would diverge."""

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) / 20


def test_workers_get_what_one_process_would_get():
    elsewhere = Devices(CPU, (CPU,))
    shared = Engine(SendsAndStacks(), toy_dataset(), toy_scenario(), TOY_TRAINING, 1, elsewhere)
    try:
        assert run_rounds(shared, 2) == run_rounds(toy_engine(SendsAndStacks()), 2)
    finally:
        shared.close()


def test_what_is_sent_has_its_own_memory_and_no_layout_but_that_of_weights():
    matrix, kernel, array = torch.rand(3, 4).t(), torch.rand(2, 3, 4, 5), np.arange(6)[::-2]
    kernel = kernel.to(memory_format=torch.channels_last)
    came = sent({"a": matrix, "b": [matrix, kernel], "c": array})
    assert came["a"] is came["b"][0]
    assert torch.equal(came["a"], matrix)
    assert came["a"].is_contiguous()
    assert came["b"][1].stride() == kernel.stride()
    assert came["c"].tolist() == [5, 3, 1]
    assert came["c"].flags.c_contiguous
    for tensor in (matrix, kernel):
        tensor.zero_()
    assert all(tensor.any() for tensor in came["b"])


def test_what_a_client_sent_stays_what_it_was():
    numbers = toy_engine(AnswersWithItsState()).run_round().method
    assert [numbers[f"{name}_{i}"] for name in ("seen", "counts") for i in range(3)] == [1, 2, 3, 1, 2, 3]


def test_a_network_draws_otherwise_with_every_client_and_in_every_round():
    class Notes(DropsOut):
        """Keeps what dropout left of ones."""

        def on_receive(self, model, client):
            model.train()
            client.state["left"] = model.dropout(torch.ones(64)).tolist()

    engine = toy_engine(Notes(), fraction=1.0)
    seen = []
    for _ in range(2):
        engine.run_round()
        seen += [state["left"] for state in engine.federation.states.values()]
    assert len(seen) == len({tuple(left) for left in seen}) == 12


def test_the_generator_of_the_caller_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run_rounds(toy_engine(DropsOut()), 1)
    assert torch.equal(torch.rand(3), expected)
