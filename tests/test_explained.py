"""Why a method falls below FedAvg, or another way of it does so much better, in the published tables."""

import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_more.jointopt import JointOpt
from flnl_more.robust_aggregation import Krum

from flnl_bench.numerics import log_prior
from flnl_bench.testing import degenerate_scenario, play, toy_engine, toy_scenario


def test_a_uniform_prior_takes_labels_away_from_the_only_class_of_a_client():
    # jointopt under dir-0.3, where clients hold few classes
    def kept(prior):
        """The mass that is left on the given labels of a client with one class."""
        engine = toy_engine(JointOpt(prior=prior), degenerate_scenario(), epochs=10)
        engine.server.round = 4
        engine.federation.train([2])
        return engine.federation.states[2]["labels"][:, 0].mean().item()

    assert kept("uniform") < 0.7 < 0.9 < kept("given")


@pytest.mark.parametrize(("y", "adjusted"), [(0, 0.1), (1, 0.9)])
def test_logit_adjustment_pulls_hardest_at_labels_that_are_rare_on_their_client(y, adjusted):
    # fednoro and fedelc under dir-0.3, where a wrong label is mostly one of a class that the client lacks
    def pull(adjustment):
        logits = torch.zeros(1, 2, requires_grad=True)
        F.cross_entropy(logits + adjustment, torch.tensor([y])).backward()
        return logits.grad.abs().max().item()

    assert pull(0.0) == pytest.approx(0.5)
    assert pull(log_prior(torch.tensor([9, 1]))) == pytest.approx(adjusted)


def test_the_one_model_that_krum_takes_knows_the_classes_of_one_client():
    # krum under dir-0.3
    def known(method):
        """Classes that the global model still predicts after clients of one class each have trained."""
        engine = toy_engine(method, toy_scenario("clean", "shard-1"), fraction=1.0, epochs=5)
        play(engine, 1)
        logits = engine.executor.logits(engine.server.weights, "test", engine.test_rows)
        return len(logits.argmax(1).unique())

    assert known(Krum()) == 1 < known(FedAvg())
