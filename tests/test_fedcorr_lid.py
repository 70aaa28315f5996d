"""The local intrinsic dimension against the closed-form checks of FedCorr's specification."""

import numpy as np
import pytest
import torch
from flnl_methods.intrinsic_dimension import client_dimension, local_dimensions

ROWS = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])


def test_the_dimension_of_points_on_a_line():
    points = torch.tensor([[float(x), 0.0] for x in (0, 1, 3, 7, 15, 31)])
    values = local_dimensions(points, neighbours=3)
    assert values.tolist() == pytest.approx(
        [1.074034, 1.037929, 3.058637, 4.203059, 4.203060, 4.203061], rel=1e-4
    )
    assert client_dimension(points, neighbours=3).mean == pytest.approx(2.963297, rel=1e-4)


def test_the_dimension_of_predictions():
    values = local_dimensions(ROWS, neighbours=2)
    assert values.tolist() == pytest.approx([1.242668, 1.442692, 1.242669, 1.442693, 40.966511], rel=1e-4)
    assert values.mean().item() == pytest.approx(9.267447, rel=1e-4)


def test_a_client_with_few_rows_counts_the_neighbours_it_has():
    values = local_dimensions(ROWS, neighbours=20)
    assert values.tolist() == pytest.approx([1.785231, 1.600247, 1.641675, 1.511675, 16.343036], rel=1e-4)
    assert values.mean().item() == pytest.approx(4.576373, rel=1e-4)


@pytest.mark.parametrize(
    ("scale", "mean"), [(1.0, 13.552372), (1e-2, 13.472016), (1e-4, 8.645215), (1e-6, 0.813915)]
)
def test_the_scale_of_the_rows_matters_only_when_they_almost_coincide(scale, mean):
    rows = ROWS.double() * scale
    assert local_dimensions(rows, neighbours=3).mean().item() == pytest.approx(mean, rel=1e-4)


def test_equal_rows_have_dimension_zero():
    assert local_dimensions(ROWS[:1].expand(5, 3), neighbours=3).tolist() == [0.0] * 5


def test_equidistant_rows_explode_and_are_dropped():
    corners = torch.eye(3)
    assert local_dimensions(corners, neighbours=2).tolist() == pytest.approx([4.828433e6] * 3, rel=1e-4)
    far = torch.eye(8)
    assert client_dimension(far, neighbours=2) == (None, 1.0)
    mean, dropped = client_dimension(torch.cat([ROWS, ROWS + 0.03]), neighbours=3)
    assert (np.isfinite(mean), dropped) == (True, 0.0)


def test_only_usable_rows_enter_the_mean_and_the_others_are_counted():
    crowd = torch.rand(30, 40, generator=torch.Generator().manual_seed(0)) * 0.1
    corners = 50 * torch.eye(40)[:10]  # far from the crowd and from each other, at equal distances
    values = local_dimensions(torch.cat([crowd, corners]), neighbours=5)
    score = client_dimension(torch.cat([crowd, corners]), neighbours=5)
    assert (values[30:] > 1e3).all()
    assert score.dropped == pytest.approx(0.25)
    assert score.mean == pytest.approx(values[:30].mean().item())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_below_six_rows_a_client_has_no_score(size):
    assert client_dimension(torch.rand(size, 3)) == (None, 0.0)


def test_predictions_that_are_not_numbers_give_no_score():
    assert client_dimension(torch.full((8, 3), float("nan"))).mean is None


def test_blocks_do_not_change_the_dimension(monkeypatch):
    rows = torch.rand(50, 3, generator=torch.Generator().manual_seed(1))
    whole = local_dimensions(rows)
    monkeypatch.setattr("flnl_methods.intrinsic_dimension.ROWS_AT_ONCE", 7)
    assert torch.equal(local_dimensions(rows), whole)
