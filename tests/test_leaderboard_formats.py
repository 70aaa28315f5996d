"""The leaderboard in every format."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from html.parser import HTMLParser

import pytest
from command_line import flnl
from synthetic_runs import write_grid, write_run

from flnl_bench.atomic_files import partial_folder, replacing
from flnl_bench.leaderboards.formats import FORMATS

GRID = {
    "fedavg": {"clean": (90.0, 92.0), "sym-1.0": (20.0, 22.0), "asym-1.0": (60.0, 62.0)},
    "fedgr": {"clean": (80.0, 82.0), "sym-1.0": (70.0, 74.0), "asym-1.0": (50.0, 52.0)},
    "my_method": {"sym-1.0": (99.0,)},
}


@pytest.fixture
def folder(tmp_path):
    write_grid(tmp_path / "runs", GRID, seeds=(1, 13))
    return tmp_path / "runs"


def test_markdown(folder):
    out = flnl("leaderboard", folder, "--format", "md").out
    lines = out.splitlines()
    assert lines[0] == "### digits · iid · quick"
    table = [line for line in lines if line.startswith("|")]
    assert table == [
        "| method | clean | sym-1.0 | asym-1.0 | Avg | rank | place | P(best) |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| fedgr | 81.00 ± 1.41 | **72.00 ± 2.83** | 51.00 ± 1.41 | **61.50 ± 2.12** | **1.50** = "
        "| 1 a | 1.00 |",
        "| fedavg | **91.00 ± 1.41** | 21.00 ± 1.41 | **61.00 ± 1.41** | 41.00 ± 1.41 | **1.50** = "
        "| 2 b | 0.00 |",
        "| ▸ my\\_method |  | 99.00 †1 |  |  |  |  |  |",
        "| *detectable* | 0.00 | 14.08 | 0.00 |  |  |  |  |",
    ]
    assert "mean ± sample standard deviation (ddof 1) over 2 seeds (1, 13)" in out


def test_latex_is_a_booktabs_table(folder):
    out = flnl("leaderboard", folder, "--format", "latex", "--against", "fedavg").out
    assert out.startswith("% In the preamble: \\usepackage{booktabs,graphicx}\n")
    assert r"\textbf{72.00{\scriptsize\,$\pm$\,2.83}}" in out
    assert r"my\_method" in out
    assert r" & 99.00$^{\dagger 1}$" in out
    assert r"$+$20.50" in out
    assert out.isascii()
    assert out.count("\\begin") == out.count("\\end") == 4
    for row in re.findall(r"\\midrule\n(.*?)\\bottomrule", out, re.DOTALL):
        columns = {line.count("&") for line in row.strip().splitlines()}
        assert columns - {0} in ({6}, {7})  # 0: a rule


class Cells(HTMLParser):
    """The tags of a page, checked for balance."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_one_balanced_page_and_names_are_escaped(tmp_path):
    write_run(tmp_path, "fedgr", hyperparameters={"mode": "<b>&"})
    write_run(tmp_path, "fedgr", hyperparameters={"mode": "x"})
    out = flnl("leaderboard", tmp_path, "--format", "html").out
    page = Cells()
    page.feed(out)
    assert page.open == []
    assert "fedgr mode=<b>&" in page.text
    assert "http" not in out  # nothing is fetched


def test_csv_round_trips_with_all_digits(tmp_path):
    write_grid(
        tmp_path, {"fedavg": {"sym-1.0": (20.1, 22.7, 23.9)}, "fedgr": {"sym-1.0": (1 / 3, 70.0, 80.0)}}
    )
    out = flnl("leaderboard", tmp_path, "--format", "csv", "--against", "fedavg").out
    table = flnl("leaderboard", tmp_path, "--format", "json", "--against", "fedavg").json["tables"][0]
    lines = list(csv.DictReader(io.StringIO(out)))
    assert [(line["method"], line["setting"]) for line in lines] == [
        (method, setting) for method in ("fedgr", "fedavg") for setting in ("sym-1.0", "avg")
    ]
    for line, row in zip(lines[::2], table["rows"], strict=True):
        cell = row["cells"]["sym-1.0"]
        assert (float(line["mean"]), float(line["std"])) == (cell["mean"], cell["std"])
        assert line["seeds"].split() == list(cell["seeds"])
        assert int(line["count"]) == cell["count"] == 3
        assert json.loads(line["hyperparameters"]) == row["hyperparameters"]
    assert float(lines[1]["difference"]) == table["rows"][0]["against"]["difference"]


def test_csv_counts_the_seeds_of_an_uneven_average(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (20.0, 30.0), "asym-1.0": (60.0,)}})
    out = flnl("leaderboard", tmp_path, "--format", "csv").out
    lines = list(csv.DictReader(io.StringIO(out)))
    assert [(line["count"], line["seeds"]) for line in lines] == [("2", "1 13"), ("1", "1"), ("1", "")]


def test_csv_carries_the_paper_s_numbers(tmp_path):
    write_run(tmp_path, "fedgr", "sym-1.0", accuracy=60.0, dataset="cifar10")
    (line, _) = csv.DictReader(io.StringIO(flnl("leaderboard", tmp_path, "--format", "csv", "--paper").out))
    assert (line["protocol"], line["paper_protocol"], line["paper_mean"]) == ("quick", "paper", "83.91")
    assert float(line["difference_to_paper"]) == pytest.approx(60.0 - 83.91)


def test_json_is_one_document_with_everything(folder):
    done = flnl("leaderboard", folder, "--format", "json", "--paper", "--against", "fedavg")
    document = done.json
    assert document["metric"] == "last10"
    table = document["tables"][0]
    assert table["training"]["model"].startswith("tiny-cnn")
    assert table["averaged"] == ["sym-1.0", "asym-1.0"]
    assert table["paper"]["comparable"] is False
    assert table["rows"][0]["against"]["wins"] == 2
    assert set(table["scenarios"]["clean"]) == {"1", "13"}


# The highest number of sym-1.0 is over one seed of two: it is marked as such, and never as the best.
@pytest.mark.parametrize(
    ("name", "best", "fewer"),
    [
        ("md", "| **72.00 ± 2.83** |", "| 99.00 †1 |"),
        ("latex", r"\textbf{72.00{", r"& 99.00$^{\dagger 1}$"),
        ("html", "<b>72.00 ", ">99.00<sup>†1</sup>"),
        (
            "csv",
            ",72.0,2.8284271247461903,2,1 13,,best,",
            ",1,1,,,",
        ),
        ("table", "\x1b[1m72.00", " 99.00†1"),
    ],
)
def test_a_cell_with_fewer_seeds_is_never_the_best(folder, monkeypatch, name, best, fewer):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    out = flnl("leaderboard", folder, "--format", name).out
    for text in (best, fewer):
        assert out.count(text) == 1


def test_json_names_the_marks_of_each_row(folder):
    rows = flnl("leaderboard", folder, "--format", "json").json["tables"][0]["rows"]
    assert [row["marks"].get("sym-1.0") for row in rows] == ["best", None, None]
    assert [row["marks"].get("Avg") for row in rows] == ["best", None, None]
    assert [row["marks"].get("rank") for row in rows] == ["best", "best", None]


@pytest.mark.parametrize("width", [160, 80, 60, 30])
def test_the_terminal_table_fits_its_width(folder, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = flnl("leaderboard", folder, "--against", "fedavg").out
    assert max(len(line) for line in out.splitlines()) <= width
    first = out.split("against")[0]
    for number in ("91.00", "21.00", "61.00", "41.00"):
        assert first.count(number) == 1  # no column is lost


def test_a_comparison_is_one_block_in_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    values = {"sym-1.0": (20.0, 25.0, 30.0), "asym-1.0": (60.0, 70.0, 90.0)}
    write_grid(tmp_path, {"fedavg": values, "fl-coteaching": {k: v[::-1] for k, v in values.items()}})
    write_run(tmp_path, "fedprox", changed={"mu": 0.1}, hyperparameters={"mu": 0.1})
    lines = flnl("leaderboard", tmp_path, "--against", "fedavg").out.splitlines()
    assert sum(line.startswith("method") for line in lines) == 2
    header = next(line for line in lines if "W/T/L" in line and line.startswith("method"))
    assert header.split()[-2:] == ["p", "(Holm)"]


def test_a_terminal_gets_bold_and_underline(folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = flnl("leaderboard", folder).out
    assert "\x1b[1m91.00" in out
    assert "Best in bold, second underlined." in out


@pytest.mark.parametrize("name", FORMATS)
def test_output_writes_the_format_of_the_file_s_name(folder, tmp_path, name):
    file = tmp_path / f"board{FORMATS[name].ending}"
    done = flnl("leaderboard", folder, "--output", file)
    assert (done.code, done.out) == (0, "")
    assert done.errors[-1] == f"flnl-bench: wrote {file}"
    flnl("leaderboard", folder, "--format", name, "-o", tmp_path / "same")
    assert file.read_text() == (tmp_path / "same").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, "same", "runs"])


def test_an_unknown_ending_is_refused_unless_the_format_is_given(folder, tmp_path):
    file = tmp_path / "board.pdf"
    done = flnl("leaderboard", folder, "-o", file)
    assert done.code == 2
    assert f"{file} must end in one of .txt, .md, .tex, .csv, .html, .json, unless" in done.errors[-1]
    assert not file.exists()
    assert flnl("leaderboard", folder, "-o", file, "--format", "md").code == 0


def test_output_replaces_a_file_only_with_force(folder, tmp_path):
    file = tmp_path / "board.md"
    file.write_text("mine")
    done = flnl("leaderboard", folder, "-o", file)
    assert (done.code, file.read_text()) == (2, "mine")
    assert f"{file} exists already; choose another file, or replace it with --force" in done.errors[-1]
    assert flnl("leaderboard", folder, "-o", file, "--force").code == 0
    assert file.read_text() != "mine"


def test_output_never_replaces_a_pipe_or_device(folder, tmp_path):
    pipe = tmp_path / "pipe.md"
    os.mkfifo(pipe)
    done = flnl("leaderboard", folder, "-o", pipe, "--force")
    assert (done.code, done.errors[-1]) == (2, f"flnl-bench: {pipe} is a device or pipe; --output is a file")
    assert pipe.is_fifo()


@pytest.mark.parametrize("writing", [replacing, partial_folder])
def test_a_full_disk_names_the_file_or_folder_that_was_asked_for(tmp_path, writing):
    with pytest.raises(OSError, match="No space left") as caught, writing(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path / "out")


def test_output_into_a_missing_folder_is_refused(folder, tmp_path):
    done = flnl("leaderboard", folder, "-o", tmp_path / "none" / "board.md")
    assert (done.code, "there is no folder" in done.errors[-1]) == (2, True)
