"""What the tests of the methods with two networks share."""

import numpy as np
import torch
from torch import nn

from flnl_bench.testing import run_rounds, toy_engine, toy_scenario


class Fixed(nn.Module):
    """Logits that are the parameters."""

    def __init__(self, logits):
        super().__init__()
        self.z = nn.Parameter(torch.tensor(logits))

    def forward(self, x):
        return self.z


def part(weights, name):
    """The weights of one of the networks, under the names that it has alone."""
    return {key.removeprefix(f"{name}."): t for key, t in weights.items() if key.startswith(f"{name}.")}


def rightly_judged(method, rounds):
    """The share of samples that both networks keep if and only if their label is right, in an easy world."""
    scenario = toy_scenario("sym-1.0:0.3-0.5")
    engine = toy_engine(method, scenario, rounds=rounds, fraction=1.0)
    run_rounds(engine)
    right = scenario.given == scenario.true
    states = engine.federation.states
    return np.mean(
        [(s["kept"].all(1).numpy() == right[scenario.clients[k]]).mean() for k, s in states.items()]
    )
