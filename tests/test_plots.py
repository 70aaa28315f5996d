"""Pictures of rounds and headline numbers: what is drawn is what was recorded."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from command_line import flnl
from pictured_runs import write_curve
from synthetic_runs import write_run

import flnl_bench as fb
from flnl_bench import plots
from flnl_bench.methods import declarations, default_methods
from flnl_bench.plots.style import COLOURS, MARKERS, MOST_LINES, label_text, looks_of
from flnl_bench.plots.summaries import round_times, short_time
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import summarise


def lines_of(axis) -> dict[str, np.ndarray]:
    """The drawn points [n, 2] of each line with a name."""
    return {
        line.get_label(): line.get_xydata()
        for line in axis.get_lines()
        if not line.get_label().startswith("_")
    }


def names_in(figure) -> list[str]:
    """The legend below the panels."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def titles(figure) -> list[str]:
    return [axis.get_title() for axis in figure.axes]


# -- curves ------------------------------------------------------------------------------------------
def test_a_curve_is_the_mean_over_seeds_by_round_counted_from_one(tmp_path):
    write_curve(tmp_path, [10, 30, 50], seed=1)
    write_curve(tmp_path, [20, 50, 50], seed=13)
    (axis,) = plots.curves(tmp_path).axes
    assert lines_of(axis)["fedavg"].tolist() == [[1, 15], [2, 40], [3, 50]]


def test_the_band_is_one_sample_standard_deviation_wide_on_both_sides(tmp_path):
    for seed, accuracy in zip((1, 13, 42), (40, 46, 52), strict=True):
        write_curve(tmp_path, [accuracy, accuracy], seed=seed)
    (axis,) = plots.curves(tmp_path).axes
    (band,) = axis.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(46 - 6), pytest.approx(46 + 6))  # ddof 1


def test_one_seed_has_no_band(tmp_path):
    write_curve(tmp_path, [1, 2])
    (axis,) = plots.curves(tmp_path).axes
    assert not axis.collections


def test_every_cell_has_a_panel_and_the_legend_every_method(tmp_path):
    for method in ("fedgr", "fedavg", "fedprox"):
        write_curve(tmp_path, [1, 2], method, setting="sym-1.0")
    write_curve(tmp_path, [3, 4], "fedcorr", setting="clean")
    figure = plots.curves(tmp_path)
    assert titles(figure) == ["clean", "sym-1.0"]
    assert [list(lines_of(axis)) for axis in figure.axes] == [["fedcorr"], ["fedavg", "fedprox", "fedgr"]]
    assert sorted(names_in(figure)) == ["fedavg", "fedcorr", "fedgr", "fedprox"]
    assert "digits · iid" in figure.get_suptitle()


def test_runs_of_different_protocols_do_not_share_a_panel(tmp_path):
    write_curve(tmp_path, [1, 2])
    write_curve(tmp_path, [1, 2, 3])
    assert len(plots.curves(tmp_path).axes) == 2


def test_a_round_without_accuracy_is_a_gap(tmp_path):
    write_curve(tmp_path, [20.0, *[30.0] * 11])  # the last ten must be complete
    rounds = next(tmp_path.rglob("rounds.jsonl"))
    rounds.write_text(rounds.read_text().replace('"accuracy": 20.0', '"accuracy": null'))
    (axis,) = plots.curves(tmp_path).axes
    assert np.isnan(lines_of(axis)["fedavg"][:3, 1]).tolist() == [True, False, False]


def test_memorization_is_that_of_the_diagnostics(tmp_path):
    write_curve(tmp_path, [50, 50], memorised=[12.5, 25.0])
    write_curve(tmp_path, [50, 50], memorised=[None, None], setting="clean")
    (axis,) = plots.memorization(tmp_path).axes
    assert lines_of(axis)["fedavg"][:, 1].tolist() == [12.5, 25.0]


# -- where runs come from ----------------------------------------------------------------------------
def test_all_sources_of_the_same_runs_give_the_same_picture(tmp_path):
    paths = [write_curve(tmp_path, [seed, 2], seed=seed) for seed in (1, 13)]
    results = fb.load_results(tmp_path)
    records = results.finished
    sources = (
        tmp_path,
        str(tmp_path),
        results,
        results.runs,
        records,
        paths,
        [results, paths[0] / "run.json"],
    )
    drawn = [lines_of(plots.curves(source).axes[0])["fedavg"].tolist() for source in sources]
    assert drawn == [[[1, 7], [2, 2]]] * len(sources)


def test_filters_choose_runs(tmp_path):
    for method in ("fedavg", "fedprox"):
        for seed in (1, 13):
            write_curve(tmp_path, [seed, seed], method, seed=seed)
    (axis,) = plots.curves(tmp_path, method="fedprox", seed=[13]).axes
    assert {name: points[:, 1].tolist() for name, points in lines_of(axis).items()} == {"fedprox": [13, 13]}
    with pytest.raises(fb.BadInput, match="unknown method 'fedprx' in the results; did you mean 'fedprox'"):
        plots.curves(tmp_path, method="fedprx")
    with pytest.raises(fb.BadInput, match=r"unknown seed '2' in the results .allowed: 1, 13."):
        plots.curves(tmp_path, seed=2)


# -- headline numbers --------------------------------------------------------------------------------
def test_cost_puts_means_over_seeds_against_summed_costs(tmp_path):
    for seed, accuracy in ((1, 50.0), (13, 60.0)):
        write_curve(tmp_path, [accuracy] * 3, seed=seed)  # a round: 200 bytes, 20 passes, half a second
    axes = plots.cost(tmp_path).axes
    points = [container.lines[0].get_xydata().tolist() for axis in axes for container in axis.containers]
    assert points == [[[600, 55]], [[60, 55]], [[1.5, 55]]]
    assert axes[2].get_xlabel() == "seconds"
    (file, _) = tmp_path.rglob("run.json")
    folder = RunFolder(file.parent)
    folder.write(dataclasses.replace(folder.read(), imported={"file": "theirs.zip"}))
    assert plots.cost(tmp_path).axes[2].get_xlabel() == "seconds, of several machines"


def test_ablation_bars_are_means_with_the_whole_method_first(tmp_path):
    for variant, values in {"fedgr/no-sieve": (40, 50), "fedgr": (60, 70)}.items():
        for seed, accuracy in zip((1, 13), values, strict=True):
            write_run(tmp_path, variant, seed=seed, accuracy=accuracy)
    write_run(tmp_path, "fedavg", accuracy=10)  # has no variants
    (axis,) = plots.ablation(tmp_path).axes
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axis.patches}
    assert bars == {0: 65, 1: 45}
    assert [text.get_text() for text in axis.get_xticklabels()] == ["fedgr", "no-sieve"]


def test_ablation_asks_which_method(tmp_path):
    for method in ("fedgr", "fedgr/no-sieve", "feddiv", "feddiv/persistent"):
        write_run(tmp_path, method)
    with pytest.raises(fb.BadInput, match="of one method; choose one: feddiv, fedgr"):
        plots.ablation(tmp_path)
    assert len(plots.ablation(tmp_path, method="feddiv").axes[0].patches) == 2


def test_cells_with_nothing_to_compare_are_left_out_of_an_ablation(tmp_path):
    write_run(tmp_path, "fedgr")
    with pytest.raises(fb.BadInput, match="nothing to compare fedgr with"):
        plots.ablation(tmp_path)
    for method in ("fedgr", "fedgr/no-sieve"):
        write_run(tmp_path, method, setting="clean")
    (axis,) = plots.ablation(tmp_path).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["fedgr", "no-sieve"]


def sweep(out, **more) -> None:
    for b in (0.5, 1.0):
        for r in (0.1, 0.2, 0.4):
            if (b, r) != (1.0, 0.4):
                values = {"lambda_b": b, "lambda_r": r, "teacher": "revised"}
                write_run(out, "fedgr", accuracy=100 * r + b, hyperparameters=values, **more)


def test_a_grid_is_found_and_has_a_gap_where_there_is_no_run(tmp_path):
    sweep(tmp_path)
    axis = plots.grid(tmp_path, metric="best").axes[0]
    drawn = np.ma.filled(axis.images[0].get_array(), np.nan)
    assert drawn == pytest.approx(np.array([[10.5, 11.0], [20.5, 21.0], [40.5, np.nan]]), nan_ok=True)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("lambda_b", "lambda_r")
    assert [t.get_text() for t in axis.get_xticklabels()] == ["0.5", "1"]


def test_a_grid_can_be_turned(tmp_path):
    sweep(tmp_path)
    axis = plots.grid(tmp_path, x="lambda_r").axes[0]
    assert axis.images[0].get_array().shape == (2, 3)
    assert axis.get_ylabel() == "lambda_b"


def test_a_grid_needs_two_swept_values(tmp_path):
    write_run(tmp_path, "fedgr", hyperparameters={"a": 1, "b": 1})
    with pytest.raises(fb.BadInput, match="only one combination"):
        plots.grid(tmp_path)
    write_run(tmp_path, "fedgr", hyperparameters={"a": 2, "b": 1})
    with pytest.raises(fb.BadInput, match="two swept hyper-parameters; here these differ: a"):
        plots.grid(tmp_path)
    with pytest.raises(fb.BadInput, match="unknown hyper-parameter 'c'"):
        plots.grid(tmp_path, x="c")


# -- one style ---------------------------------------------------------------------------------------
def test_every_method_of_the_packs_has_a_look_of_its_own_and_the_first_ten_a_colour_of_their_own():
    names = declarations()
    assert set(default_methods().methods) <= names.keys() <= set(default_methods().names())
    looks = {name: plots.look_of(name) for name in names}
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(names)
    first = [look.colour for name, look in looks.items() if names[name].place < math.inf]
    assert len(first) == len(set(first)) == len(COLOURS) == 10


def test_a_method_looks_as_it_declares():
    assert plots.look_of("fedgr") == ("#d55e00", "p", "-")
    assert plots.look_of("fedgr/released") == ("#56b4e9", "o", ":")


def test_a_method_looks_the_same_whatever_else_is_drawn(tmp_path):
    write_curve(tmp_path, [1, 2], "fedgr")
    write_curve(tmp_path, [1, 2], "mine")
    alone = {name: plots.curves(tmp_path, method=name).axes[0].get_lines()[0] for name in ("fedgr", "mine")}
    together = {line.get_label(): line for line in plots.curves(tmp_path).axes[0].get_lines()}
    for name, line in alone.items():
        other = together[name]
        assert (line.get_color(), line.get_marker()) == (other.get_color(), other.get_marker())
        assert (line.get_color(), line.get_marker()) == plots.look_of(name)[:2]
        assert line.get_marker() in MARKERS


def test_a_method_of_the_user_has_no_colour_of_fedavg_or_the_control():
    theirs = {plots.look_of(name).colour for name in ("fedavg", "fedavg/strong")}
    assert theirs.isdisjoint(plots.look_of(f"mine-{n}").colour for n in range(60))


def test_no_two_methods_of_a_picture_look_alike():
    names = [f"mine-{n}" for n in range(60)]  # by their digests, some of them would
    bare = [plots.look_of(name)[:2] for name in names]
    assert len(set(bare)) < len(names)
    looks = looks_of([*names, "fedgr", "fedgr v2"])
    assert len({looks[name][:2] for name in (*names, "fedgr")}) == 61
    assert looks["fedgr"] == plots.look_of("fedgr")
    assert looks["fedgr v2"][:2] == looks["fedgr"][:2]


def test_a_panel_has_at_most_as_many_lines_as_can_be_read(tmp_path):
    for n in range(MOST_LINES + 1):
        write_curve(tmp_path, [1, 2], f"mine-{n}")
    with pytest.raises(fb.BadInput, match="would have 13 lines, at most 12 can be read; choose some"):
        plots.curves(tmp_path)
    assert plots.curves(tmp_path, method=["mine-1", "mine-2"])


@pytest.mark.parametrize(("size", "inches"), [("column", 3.25), ("page", 6.75)])
def test_a_picture_for_a_paper_is_as_wide_as_a_column_or_a_page(tmp_path, size, inches):
    for setting in ("clean", "sym-1.0", "asym-1.0"):
        write_curve(tmp_path, [1, 2], setting=setting)
    target = tmp_path / "curves.pdf"
    done = flnl("plot", "curves", tmp_path, "--size", size, "-o", target)
    assert done.code == 0, done.errors
    with plots.paper_size(size):
        figure = plots.curves(tmp_path)
    assert figure.get_figwidth() == inches
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg"]  # as in a paper's table
    assert b"/FontFile2" in target.read_bytes()  # TrueType


def test_a_picture_that_is_too_wide_for_a_column_says_so(tmp_path):
    write_curve(tmp_path, [1, 2])
    with (
        plots.paper_size("column"),
        pytest.raises(fb.BadInput, match="3 panels do not fit"),
    ):
        plots.cost(tmp_path)


def test_titles_are_inside_the_picture(tmp_path):
    for partition in ("dir-0.3,order=drawn", "fedcorr-0.7-10"):
        for setting in ("pair-0.6:0.1-0.3,step=-1,rates=1+1+1+1+1+2+2+2+2+2", "sym-1.0"):
            write_curve(tmp_path, [1, 2], setting=setting, partition=partition)
    with plots.paper_size("column"):
        figure = plots.curves(tmp_path)
    figure.canvas.draw()
    for axis in figure.axes:
        box = axis.title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (60, 200, ["1 min", "2 min", "3 min", "4 min"]),
        (100, 9000, ["2 min", "10 min", "30 min", "2 h"]),
        (90_000, 300_000, ["1 d", "2 d", "3 d", "4 d"]),
    ],
)
def test_times_are_in_units_that_people_use(low, high, ticks):
    assert [short_time(seconds) for seconds in round_times(low, high)] == ticks


def test_ticks_of_costs_do_not_overlap_where_one_protocol_costs_much_more(tmp_path):
    for rounds, method, cost in ((2, "fedavg", 20), (2, "fedgr", 400), (3, "fedavg", 1), (3, "fedgr", 2)):
        folder = RunFolder(write_curve(tmp_path, [1.0] * rounds, method))
        costs = {"seconds": 3.0 * cost, "forward": 9_000 * cost, "backward": 0, "bytes_up": 50_000 * cost}
        rows = [{**row, **costs} for row in folder.read_rounds()]
        folder.rewrite_rounds(rows)
        folder.write(dataclasses.replace(folder.read(), summary=summarise(rows)))
    with plots.paper_size("page"):
        figure = plots.cost(tmp_path)
    figure.canvas.draw()
    for axis in figure.axes[-3:]:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        shown = sorted((box.x0, box.x1) for box in boxes if axis.bbox.x0 <= box.x0 <= axis.bbox.x1)
        assert len(shown) > 1
        assert all(right <= left + 1 for (_, right), (left, _) in itertools.pairwise(shown))


def test_bars_start_where_differences_can_be_seen_and_the_axis_says_so(tmp_path):
    for method, accuracy in {"fedgr": 95.0, "fedgr/no-sieve": 93.0}.items():
        write_run(tmp_path, method, accuracy=accuracy)
    (axis,) = plots.ablation(tmp_path).axes
    assert axis.get_ylim()[0] == 90
    assert "axis starts at 90" in axis.get_ylabel()


def test_versions_of_a_method_differ_in_nothing_but_dashes():
    first, second = plots.look_of("fedgr"), plots.look_of("fedgr v2")
    assert first[:2] == second[:2]
    assert first.dash != second.dash


HOSTILE = r"$\frac{1$_x^"


@pytest.mark.parametrize("name", [HOSTILE, "_hidden", "<b>&amp;", "a\x1b[31m\nb", "%s{0}", "$x$", "x" * 400])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_names_are_harmless_and_in_the_legend(tmp_path, name, ending):
    write_curve(tmp_path, [1, 2], label=name, changed={"mu": 1.0}, hyperparameters={"mu": 1.0})
    figure = plots.curves(tmp_path)
    (shown,) = names_in(figure)
    assert shown == label_text(f"fedavg [{name}]")
    assert "\n" not in shown
    assert "\x1b" not in shown
    written = plots.save(figure, tmp_path / f"a.{ending}").read_bytes()
    assert b"<b>" not in written


def test_the_same_runs_give_the_same_file_and_no_rounds_are_invented(tmp_path):
    write_curve(tmp_path, [1, 2])
    files = [plots.save(plots.curves(tmp_path), tmp_path / f"{n}.svg").read_bytes() for n in (1, 2)]
    assert files[0] == files[1]


def test_a_notebook_shows_a_figure(tmp_path):
    write_curve(tmp_path, [1, 2])
    assert plots.curves(tmp_path)._repr_png_().startswith(b"\x89PNG")


# -- the command -------------------------------------------------------------------------------------
def test_the_command_and_the_library_know_the_same_kinds():
    from flnl_bench.cli.plot import PLOT_HELP

    assert list(PLOT_HELP) == list(plots.PLOTS)


def test_the_command_writes_by_the_ending(tmp_path):
    write_curve(tmp_path, [1, 2])
    for ending, begin in {"png": b"\x89PNG", "svg": b"<?xml", "PDF": b"%PDF"}.items():
        done = flnl("plot", "curves", tmp_path, "-o", tmp_path / f"a.{ending}", "--method", "fedavg")
        assert (done.code, done.out) == (0, "")
        assert done.errors == [f"flnl-bench: wrote {tmp_path / f'a.{ending}'}"]
        assert (tmp_path / f"a.{ending}").read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["curve"], "unknown kind of plot 'curve'; did you mean 'curves'?"),
        (["curves", "-o", "a.gif"], "unknown ending '.gif' in the file name 'a.gif'"),
        (["curves", "-o", "no/a.png"], "there is no folder no to write a.png into"),
        (["curves", "nowhere"], "there is no folder nowhere of a run or of results"),
        (["curves", "empty"], "there is no finished run in empty"),
        (["curves", "runs", "--setting", "sym"], "unknown setting 'sym' in the results"),
        (["curves", "runs", "--x", "mu"], "--x is not an option of curves plots"),
        (["cost", "runs", "--metric", "last"], "unknown metric 'last'"),
        (
            ["sieve", "runs"],
            "no run of fedavg has recorded the losses of a sieve; 1 of 1 have no beliefs.npz",
        ),
        (["partition", "runs"], "has no beliefs.npz"),
        (["grid", "runs"], "only one combination"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_curve(tmp_path / "runs", [1, 2], beliefs=None)
    done = flnl("plot", *(words if "-o" in words else [*words, "-o", "a.png"]))
    assert done.code == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]
    assert not list(tmp_path.glob("*.*"))


def test_a_run_that_is_not_finished_is_named(tmp_path):
    path = write_run(tmp_path, status="interrupted")
    with pytest.raises(fb.BadInput, match="is not finished: its status is interrupted"):
        plots.curves(fb.load_results(tmp_path).records[0])
    done = flnl("plot", "curves", path, "-o", tmp_path / "a.png")
    assert "is not finished: its status is interrupted" in done.errors[0]


def test_rounds_that_are_missing_are_named(tmp_path):
    path = write_curve(tmp_path, [1, 2, 3])
    (path / "rounds.jsonl").write_text("")
    done = flnl("plot", "curves", path, "-o", tmp_path / "a.png")
    assert done.code == 2
    assert "rounds.jsonl does not hold all rounds (3)" in done.errors[0]


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith("flnl_bench.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(fb, "plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = flnl("plot", "curves", tmp_path, "-o", tmp_path / "a.png")
    assert done.errors == ["flnl-bench: plots need matplotlib: pip install 'flnl-bench[plot]'"]
    assert done.code == 2
