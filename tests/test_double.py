"""All methods in double precision, in which codes are compared: torch's default decides."""

import pytest
import torch

import flnl_bench as fb
from flnl_bench.methods import default_methods
from flnl_bench.testing import run_rounds, toy_engine

NAMES = default_methods().names()


@pytest.fixture(autouse=True)
def double():
    """Torch's default at float64, and back again."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "name", ["fedgr/released", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)]
)
def test_a_method_computes_in_the_default_precision_of_torch(name):
    engine = toy_engine(default_methods().make(name, {}, {}))
    run_rounds(engine, 6)  # beyond the warm-up of all methods
    assert {w.dtype for w in engine.server.weights.values() if w.is_floating_point()} == {torch.float64}
    assert all(torch.isfinite(w).all() for w in engine.server.weights.values())


def test_a_run_that_would_be_recorded_as_one_of_float32_is_refused(tmp_path):
    with pytest.raises(fb.BadInput, match="default type is float64, but recorded runs need float32"):
        fb.run("fedavg", "clean", rounds=1, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
