"""Pictures of federations and of what methods believed: what is drawn is what was recorded."""

import numpy as np
import pytest
from known_world import WORLD
from pictured_runs import BELIEFS, GIVEN, TRUE, transitions, without, write_curve

import flnl_bench as fb
from flnl_bench import plots
from flnl_bench.plots.judgements import mixture_of
from flnl_bench.scenario import effective_holders, save_scenario


def bubbles(collection) -> dict[tuple[int, int], float]:
    """Area by client and class."""
    places = collection.get_offsets().astype(int).tolist()
    return {tuple(place): size for place, size in zip(places, collection.get_sizes(), strict=True)}


# -- federations -------------------------------------------------------------------------------------
def test_the_area_of_a_bubble_is_the_number_of_images_before_and_after_the_noise(tmp_path):
    write_curve(tmp_path, [1])
    before, after = plots.partition(tmp_path).axes
    counts = transitions()
    (true,), (given, wrong) = before.collections, after.collections
    unit = bubbles(true)[0, 0] / 3  # client 0 has three images whose class is 0
    for drawn, expected in (
        (true, counts.sum(2)),
        (given, counts.sum(1)),
        (wrong, counts.sum(1) - np.einsum("kcc->kc", counts)),
    ):
        there = {(k, c): pytest.approx(unit * n) for (k, c), n in np.ndenumerate(expected) if n}
        assert bubbles(drawn) == there


def right_labels(axis):
    (right,) = axis.child_axes
    return [text.get_text() for text in right.get_yticklabels()]


def test_the_spread_of_each_class_is_written_on_the_right_of_the_first_panel(tmp_path):
    write_curve(tmp_path, [1])  # all three clients take part in each round
    before, after = plots.partition(tmp_path).axes
    holders = effective_holders(transitions().sum(2))
    assert right_labels(before) == [f"{number:.1f} (0%)" for number in holders]
    assert not after.child_axes


def test_several_scenarios_without_wrong_labels_have_one_panel_each_and_no_chance():
    scenarios = [fb.make_scenario(partition=name, setting="clean") for name in ("dir-0.3", "hsu-0.3")]
    axes = plots.partition(scenarios).axes
    assert [axis.get_title() for axis in axes] == ["dir-0.3", "hsu-0.3"]
    assert right_labels(axes[0])[9] == "5.5"


def test_a_federation_that_many_methods_trained_on_is_drawn_once(tmp_path):
    for method in ("fedavg", "fedprox"):
        write_curve(tmp_path, [1], method)
    write_curve(tmp_path, [1], seed=13)
    figure = plots.partition(tmp_path)
    assert [axis.get_title() for axis in figure.axes] == [
        f"seed {seed} · {when} the noise" for seed in (1, 13) for when in ("before", "after")
    ]


def test_where_the_truth_is_unknown_the_given_labels_are_drawn(tmp_path):
    path = write_curve(tmp_path, [1])
    np.savez_compressed(path / "beliefs.npz", **without("true", "realised_ratio"))
    (axis,) = plots.partition(path).axes
    drawn = bubbles(axis.collections[0])
    assert drawn.keys() == set(zip(BELIEFS["client"].tolist(), GIVEN.tolist(), strict=True))
    with pytest.raises(fb.BadInput, match="true labels of digits are not known"):
        plots.transitions(path)


def test_a_transition_matrix_holds_shares_of_the_true_class(tmp_path):
    write_curve(tmp_path, [1])
    everyone, clean, noisy = plots.transitions(tmp_path).axes[:3]
    counts = transitions().sum(0)
    assert np.asarray(everyone.images[0].get_array()) == pytest.approx(counts / counts.sum(1, keepdims=True))
    assert noisy.get_title() == "2 sym clients"
    assert clean.get_title() == "1 clean client"
    assert clean.images[0].get_array()[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_single_clients_have_matrices_too(tmp_path):
    write_curve(tmp_path, [1])
    axis = plots.transitions(tmp_path, client=[1]).axes[0]
    assert axis.images[0].get_array().tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 1]]
    with pytest.raises(fb.BadInput, match="client is 3, but must be a number from 0 to 2"):
        plots.transitions(tmp_path, client=[3])


def test_a_scenario_and_its_file_are_drawn_alike(tmp_path):
    scenario = fb.make_scenario(clients=3, samples=60, setting="sym-1.0")
    save_scenario(scenario, tmp_path / "world")
    for source in (scenario, tmp_path / "world.npz", [str(tmp_path / "world.npz")]):
        axis = plots.partition(source).axes[1]
        drawn = bubbles(axis.collections[0])
        held = {(k, int(c)) for k, rows in enumerate(scenario.clients) for c in scenario.given[rows]}
        assert drawn.keys() == held
    assert len(plots.transitions(WORLD).axes) > 1


# -- the sieve ---------------------------------------------------------------------------------------
def test_the_histogram_of_a_sieve_counts_right_and_wrong_labels_by_loss(tmp_path):
    write_curve(tmp_path, [1])
    (axis,) = plots.sieve(tmp_path).axes
    drawn = {patch.get_label(): patch.get_data() for patch in axis.patches}
    losses, wrong = BELIEFS["losses"], GIVEN != TRUE
    judged = np.isfinite(losses)
    for name, those in {"right labels": judged & ~wrong, "wrong labels": judged & wrong}.items():
        values, edges, _ = drawn[name]
        counts = np.histogram(losses[those], edges)[0]
        assert counts.sum() == those.sum()
        assert values == pytest.approx(counts / (judged.sum() * np.diff(edges)))  # together of area one


def test_the_mixture_has_the_moments_that_the_posteriors_give():
    losses, posterior = np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.5, 0.0])
    low, high = mixture_of(losses, posterior)
    assert low == pytest.approx((1 / 3, np.sqrt(2) / 3, 0.5))  # mean (0 + 0.5)/1.5, variance 0.5/1.5 − 1/9
    assert high == pytest.approx((5 / 3, np.sqrt(2) / 3, 0.5))
    x = np.linspace(-20, 20, 100_001)
    assert np.trapezoid(low.density(x) + high.density(x), x) == pytest.approx(1)


def test_without_posteriors_two_gaussians_are_fitted():
    losses = np.concatenate([np.linspace(0, 0.1, 30), np.linspace(2, 2.1, 10)])
    low, high = mixture_of(losses, None)
    assert (low.mean, high.mean) == (pytest.approx(0.05), pytest.approx(2.05))
    assert (low.share, high.share) == (pytest.approx(0.75), pytest.approx(0.25))
    assert mixture_of(np.ones(5), None) == []


def test_the_drawn_components_are_those_of_the_recorded_posteriors(tmp_path):
    write_curve(tmp_path, [1])
    (axis,) = plots.sieve(tmp_path).axes
    judged = np.isfinite(BELIEFS["losses"])
    parts = mixture_of(BELIEFS["losses"][judged], BELIEFS["clean_probability"][judged])
    for line, part in zip(axis.get_lines(), parts, strict=True):
        x, y = line.get_data()
        assert y == pytest.approx(part.density(x))


def test_runs_without_losses_are_left_out_of_the_sieve(tmp_path):
    write_curve(tmp_path, [1], "fedavg", beliefs=without("losses"))
    write_curve(tmp_path, [1], "feddiv")
    assert len(plots.sieve(tmp_path).axes) == 1
    with pytest.raises(fb.BadInput, match="no run of fedavg has recorded the losses of a sieve"):
        plots.sieve(tmp_path, method="fedavg")


# -- clients -----------------------------------------------------------------------------------------
def test_noise_ratios_are_those_recorded_with_their_correlation(tmp_path):
    write_curve(tmp_path, [1], "fedgr", seed=1)
    other = {**BELIEFS, "estimated_ratio": np.array([0.4, 0.6, 0.5])}
    write_curve(tmp_path, [1], "fedgr", seed=13, beliefs=other)
    (axis,) = plots.noise(tmp_path).axes
    (points,) = axis.collections
    pairs = np.array([[0.25, 0.2], [0.5, 0.9], [0.25, 0.4], [0.5, 0.6], [0.5, 0.5]])
    assert np.asarray(points.get_offsets()) == pytest.approx(pairs)
    r = np.corrcoef(*pairs.T)[0, 1]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [f"fedgr, r = {r:.2f}"]


def test_a_correlation_that_is_not_defined_is_said_so(tmp_path):
    same = {**BELIEFS, "estimated_ratio": np.array([0.3, 0.3, 0.3])}
    write_curve(tmp_path, [1], "fedgr", beliefs=same)
    (axis,) = plots.noise(tmp_path).axes
    assert axis.get_legend().get_texts()[0].get_text() == "fedgr, r = undefined"


def test_f_scores_are_those_of_the_clients_that_were_judged(tmp_path):
    write_curve(tmp_path, [1], "fedgr")
    (axis,) = plots.fscore(tmp_path).axes
    (points,) = axis.collections
    # Client 0: three of three found, nothing else. Client 1: both kept, one wrongly: P 1/2, R 1.
    assert points.get_offsets()[:, 1].tolist() == pytest.approx([1.0, 2 / 3])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["fedgr"]


def test_methods_that_judge_nothing_are_left_out(tmp_path):
    write_curve(tmp_path, [1], "fedavg", beliefs=without("clean"))
    with pytest.raises(fb.BadInput, match="no run of fedavg has recorded a split"):
        plots.fscore(tmp_path)


# -- what runs record --------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fl-dividemix", "feddiv", "fedcorr"])
def test_methods_with_a_loss_sieve_record_its_losses(tmp_path, method):
    small = {"rounds": 5, "clients": 2, "epochs": 1, "samples": 80, "fraction": 1.0, "batch_size": 16}
    result = fb.run(method, "sym-1.0:0.4-0.6", out=tmp_path, device="cpu", **small)
    losses = result.beliefs["losses"]
    assert np.isfinite(losses).all()
    assert losses.nunique() > 10
    assert np.ptp(losses[result.beliefs["client"] == 0]) > 0
