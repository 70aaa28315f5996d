"""Every method and its variants pass the conformance kit."""

import pytest
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedcorr import FedCorr
from flnl_methods.feddiv import FedDiv
from flnl_methods.fedfixer import FedFixer
from flnl_methods.fedgr import FedGR
from flnl_methods.fedgr_released import FedGRReleased
from flnl_methods.fednoro import FedNoRo
from flnl_methods.fedprox import FedProx
from flnl_methods.fl_coteaching import FLCoteaching
from flnl_methods.fl_coteaching_plus import FLCoteachingPlus
from flnl_methods.fl_dividemix import FLDivideMix
from flnl_more.cores import Cores, LocalCores
from flnl_more.fedelc import FedELC
from flnl_more.fedlsr import FedLSR
from flnl_more.fedrg import FedRG
from flnl_more.fedrn import FedRN
from flnl_more.fedsir import FedSIR
from flnl_more.jointopt import JointOpt
from flnl_more.loss_correction import FedEFC, Forward
from flnl_more.robust_aggregation import RFA, Krum, Median, TrimmedMean
from flnl_more.robust_losses import ELR, GCE, SCE
from flnl_more.robust_losses_reshaped import BiTempered, Focal, MixUp, NCEandMAE, NCEandRCE
from flnl_more.rofl import RoFL
from flnl_more.selfie import Selfie
from flnl_more.server_steps import FedDyn, FedExP

from flnl_bench import Method
from flnl_bench.methods import default_methods, is_shipped
from flnl_bench.testing import CHECKS, toy_engine
from flnl_bench.testing.methods import (
    check_blind,
    check_blind_clients,
    check_deterministic,
    check_isolated,
    check_order_of_clients,
    check_resumes,
    check_warmup,
    disturbed_engine,
)
from flnl_bench.testing.plugin_entries import CannotTell

METHODS = [
    FedAvg(),
    FedProx(),
    FedGR(),
    FedGR(high_noise_labels="pseudo+clean", noisy_client=0.3),
    FedGRReleased(),
    FedGRReleased(release="a"),
    FLDivideMix(),
    FLCoteaching(),
    FedFixer(),
    FedFixer(begin=1, beta=0.5, personal="kept", selection="batch", plain_sgd=True, forward_each_step=True),
    FedDiv(),
    FedDiv(filter_mode="release", persist_relabels=True, confidence=0.0),
    FedCorr(),
    FedNoRo(),
    GCE(truncate=0.5, aggregator="multi-krum"),
    ELR(),
    JointOpt(),
    Selfie(),
    FedELC(),
    FedLSR(),
    FedRG(),
    FedRN(),
    FedSIR(class_floor=5, provider_floor=5),
    FedEFC(monitor_share=0.0, patience=1, accuracy="training", view="weak"),
    RoFL(),
    FedDyn(),
]
# Each differs from one above in a formula, which has tests of its own, and keeps nothing else.
ALIKE = [
    FedGR(sieve="local"),
    FedGR(teacher="online", refine=False),
    FLDivideMix(gmm_fallback="reset_warmup"),
    FLCoteachingPlus(disagree_from=1),
    FedCorr(chunk=2, prox="squared", eval_aug="weak"),
    FedNoRo(min_count=3, dist="global"),
    SCE(),
    GCE(),
    NCEandRCE(),
    NCEandMAE(),
    Focal(),
    BiTempered(),
    MixUp(),
    Median(statistics="mean"),
    TrimmedMean(),
    Krum(),
    RFA(),
    Cores(),
    LocalCores(),
    FedRG(fit="batch", rows="all", halved=False),
    FedRN(keep="fp16", head_only_features=False, neighbours=1),
    Forward(),
    FedExP(),
]


def check_numbers(method):
    """It gives the same numbers whatever should not change them."""
    check_resumes(method, disturbed_engine)


# Done at once by check_numbers. Tests of the pool compare all methods in other processes.
TOGETHER = (check_deterministic, check_resumes, check_order_of_clients, check_isolated, check_blind)
ALONE = [
    check.function for check in CHECKS["method"] if check.function not in (*TOGETHER, check_blind_clients)
]


@pytest.mark.parametrize("check", [*ALONE, check_numbers])
@pytest.mark.parametrize(
    "method",
    [*METHODS, *(pytest.param(method, marks=pytest.mark.slow) for method in ALIKE)],
    ids=lambda method: method.name,
)
def test_conformance(method, check):
    check(method)


def test_no_method_is_left_out():
    shipped = set(filter(is_shipped, default_methods().methods))
    assert {method.name for method in (*METHODS, *ALIKE)} == shipped


class Late(FedAvg):
    """Its warm-up lasts a number of rounds, however few there are."""

    name = "late"
    broken: bool = False

    def warmup(self, terms):
        return 10

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * (float("nan") if self.broken and client.round > 10 else 1)


class Older(FedAvg):
    """A method of API 1 with another `warmup`."""

    name = "older"
    warmup: int = 5


class Endless(FedAvg):
    """Its warm-up never ends."""

    name = "endless"

    def warmup(self, terms):
        return terms.rounds


def test_the_check_runs_beyond_a_long_warm_up_and_names_one_that_it_cannot_reach():
    check_warmup(FedGR())
    check_warmup(Late())
    with pytest.raises(CannotTell, match="lasts 48 of 48 rounds"):
        check_warmup(Endless())
    with pytest.raises(AssertionError, match="train"):
        check_warmup(Late(broken=True))
    with pytest.raises(CannotTell, match="is not the hook"):
        check_warmup(Older())


def test_every_warm_up_is_declared_in_rounds():
    terms = toy_engine(FedAvg()).terms
    lasting = {
        name for name in default_methods().methods if default_methods().make(name, {}, {}).warmup(terms) > 0
    }
    assert lasting == {
        *("fl-coteaching", "fl-dividemix", "fedcorr", "fednoro", "feddiv", "fedfixer", "fedgr"),
        *("fedrn", "fedlsr", "rofl", "fedelc", "jointopt", "selfie"),
        *("fedefc", "forward", "cores", "fedrg", "fedsir"),
    }


def test_the_kit_catches_state_on_the_class():
    class Leaky(FedAvg):
        """Counts its calls outside of the state."""

        name = "leaky"
        calls = []

        def loss(self, model, batch, client):
            self.calls.append(1)
            return super().loss(model, batch, client) * (1 + len(self.calls) / 100)

    for check in (check_resumes, check_numbers):
        with pytest.raises(AssertionError):
            check(Leaky())


def test_the_kit_catches_state_that_is_not_checkpointed():
    class Forgetful(FedAvg):
        """Counts its rounds on the model instead of in the state."""

        name = "forgetful"

        def on_receive(self, model, client):
            model.visits = getattr(model, "visits", 0) + 1

        def loss(self, model, batch, client):
            return super().loss(model, batch, client) / (1 + model.visits)

    with pytest.raises(AssertionError, match="resumed after round 1"):
        check_resumes(Forgetful())
    with pytest.raises(AssertionError):
        check_numbers(Forgetful())


def test_the_kit_catches_a_message_that_bypasses_the_engine():
    class Smuggler(FedAvg):
        """Hands a list from client to client."""

        name = "smuggler"

        def client_state(self, client):
            return {"seen": []}

        def loss(self, model, batch, client):
            box = client.terms.__dict__.setdefault("box", [])
            box.append(1)
            return super().loss(model, batch, client) / (1 + len(box))

    for check in (check_isolated, check_numbers):
        with pytest.raises(AssertionError):
            check(Smuggler())


def test_true_labels_cannot_be_reached_from_a_client():
    for check in (check_blind, check_numbers):
        with pytest.raises(AttributeError):
            check(Peeking())


class Peeking(Method):
    """Asks the client for what it must not have."""

    name = "peeking"
    reference = "none"

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) + client.true.sum()
