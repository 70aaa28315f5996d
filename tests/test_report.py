"""The site of a results folder: its pages, its numbers, and names that mean something to a browser."""

import json
import math
import os
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from command_line import flnl
from synthetic_runs import write_grid, write_run

from flnl_bench import atomic_files
from flnl_bench.report.gather import curve_of, is_known, mean_curve, plain, slugs_of, thinned
from flnl_bench.report.site import script_data, shown, write_report

GRID = {
    "fedavg": {"sym-1.0": (20.0, 22.0), "asym-1.0": (60.0, 62.0)},
    "fedgr": {"sym-1.0": (70.0, 74.0), "asym-1.0": (50.0, 52.0)},
}
SMALL = {"rounds": 3, "clients": 4}
EVIL = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u2028=1+1"
VOID = {"meta", "link", "input", "img", "br"}


class Page(HTMLParser):
    """The elements of a page, which must be closed in their order, and the content of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.scripts, self.ids, self.words = [], [], {}, [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.last = dict(attributes)
        assert not any(name.startswith("on") for name in self.last)
        self.ids += [self.last["id"]] if "id" in self.last else []
        self.links += [self.last[name] for name in ("href", "src") if name in self.last]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[self.last.get("id")] = data
        else:
            self.words += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site that no test leaves changed, beside the runs that it is of."""
    tmp_path = tmp_path_factory.mktemp("report")
    write_grid(tmp_path / "runs", GRID, seeds=(1, 13), training=SMALL)
    write_run(tmp_path / "runs", "fedprox", dataset="cifar10", training=SMALL)
    write_run(tmp_path / "runs", "fedprox", seed=42, status="failed", training=SMALL)
    done = flnl("report", tmp_path / "runs", "-o", tmp_path / "site")
    assert (done.code, done.out) == (0, f"{tmp_path / 'site' / 'index.html'}\n")
    return tmp_path / "site"


def pages(site):
    return {str(path.relative_to(site)): Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_is_whole_and_every_link_leads_to_a_file(site):
    found = pages(site)
    kinds = ["compare.html", "cost.html", "index.html", "methods/fedavg.html", "methods/fedgr.html"]
    assert [name for name in sorted(found) if not name.startswith("runs/")] == [
        *kinds,
        "methods/fedprox.html",
    ]
    assert sum(name.startswith("runs/") for name in found) == 9
    for name, page in found.items():
        assert len(set(page.ids)) == len(page.ids)
        for link in page.links:
            target = link.partition("#")[0]
            local = not target or target.startswith("data:,") or ((site / name).parent / target).is_file()
            assert local, f"{link} in {name}"


def test_no_file_names_another_machine(site):
    for path in site.rglob("*"):
        if path.is_file():
            text = path.read_text()
            if path.name == "uplot.js":
                text = text.partition("*/")[2]  # its header says where it comes from
            assert not re.search(r"(https?:)?//[a-z]", text), path
            assert "fetch(" not in text
            assert "XMLHttpRequest" not in text


def test_the_numbers_of_the_page_are_those_of_the_runs(site):
    data = json.loads(Page((site / "index.html").read_text()).scripts["board"])
    table = next(table for table in data["tables"] if table["dataset"] == "digits")
    row = next(row for row in table["rows"] if row["label"] == "fedgr")
    column = 4 + [metric["name"] for metric in data["metrics"]].index("last10")
    numbers = {(run[0], run[1]): run[column] for run in row["runs"]}
    assert numbers == {("sym-1.0", 1): 70, ("sym-1.0", 13): 74, ("asym-1.0", 1): 50, ("asym-1.0", 13): 52}
    assert all((site / "runs" / f"{run[2]}.html").is_file() for run in row["runs"])
    text = Page((site / "methods" / "fedgr.html").read_text()).words
    assert "72.00 ± 2.83" in text
    assert "Learning Locally, Revising Globally" in text


def test_the_papers_numbers_stand_beside_ours_where_they_exist(site):
    data = json.loads(Page((site / "index.html").read_text()).scripts["board"])
    (ours,) = [row for table in data["tables"] if table["dataset"] == "cifar10" for row in table["rows"]]
    assert ours["paper"]["last10"]["sym-1.0"] == [23.02, 2.9]  # CIFAR-10, iid, FedProx
    text = Page((site / "methods" / "fedprox.html").read_text()).words
    assert "the paper (another protocol)" in text
    assert "23.02 ± 2.90" in text


def test_curves_are_means_over_seeds_and_runs_have_their_own(site):
    text = (site / "data" / "fedgr.js").read_text()
    slug, data = re.fullmatch(r"flnl\.take\((.*?), (\{.*\})\);\n", text).groups()
    assert json.loads(slug) == "fedgr"
    cell = next(cell for cell in json.loads(data)["cells"] if cell["setting"] == "sym-1.0")
    expected = {"round": [1, 2, 3], "mean": [72.0] * 3, "low": [70.0] * 3, "high": [74.0] * 3}
    assert cell["curves"]["accuracy"] == expected
    assert cell["values"] == {"1": [70.0, 70.0], "13": [74.0, 74.0]}
    (run,) = site.glob("runs/fedgr-digits-iid-sym-1.0-s13-*.html")
    curves = json.loads(Page(run.read_text()).scripts["curves"])
    assert curves["curves"]["accuracy"] == [74.0] * 3
    assert curves["curves"]["memorised"] == [10.0] * 3


def test_hyper_parameters_are_shown_once_with_ranges_and_changes(tmp_path):
    values = {"mu": 0.5}
    for setting in ("sym-1.0", "asym-1.0"):
        for rounds in (3, 4):  # two tables
            training = {"rounds": rounds}
            write_run(
                tmp_path / "runs", "fedprox", setting=setting, hyperparameters=values, training=training
            )
    assert flnl("report", tmp_path / "runs", "-o", tmp_path / "site").code == 0
    (file,) = (tmp_path / "site" / "methods").glob("fedprox*.html")
    text = file.read_text()
    assert text.count(">mu</th>") == 1
    assert "<td><strong>0.5</strong></td><td>1</td><td>float from 0</td>" in text


def test_a_method_that_is_not_installed_has_no_empty_columns(tmp_path):
    write_run(tmp_path / "runs", "mine", hyperparameters={"mu": 0.5})
    assert flnl("report", tmp_path / "runs", "-o", tmp_path / "site").code == 0
    text = (tmp_path / "site" / "methods" / "mine.html").read_text()
    assert "flnl-bench report --plugin FILE.py" in text
    assert ">default</th>" not in text


def test_a_method_is_drawn_next_to_fedavg(site):
    assert 'data-references="fedavg"' in (site / "methods" / "fedgr.html").read_text()
    assert 'data-references=""' in (site / "methods" / "fedavg.html").read_text()


def test_tables_to_download_are_those_of_the_leaderboard(site):
    runs = site.parent / "runs"
    for metric in ("last10", "best", "cost"):
        for ending, kind in (("csv", "csv"), ("md", "md"), ("tex", "latex")):
            table = flnl("leaderboard", runs, "--metric", metric, "--paper", "--format", kind).out
            assert (site / "tables" / f"{metric}.{ending}").read_text() == table


def test_runs_that_are_not_counted_are_listed(site):
    assert re.search(r"fedprox/quick-s42-[0-9a-f]{16}: failed", Page((site / "index.html").read_text()).words)


# -- names that mean something -----------------------------------------------------------------------
def test_names_of_users_are_text_on_every_page(tmp_path):
    write_run(tmp_path / "runs", "fedavg", training=SMALL)
    values = {"mode": EVIL}
    write_run(
        tmp_path / "runs",
        "fedgr",
        training=SMALL,
        hyperparameters=values,
        changed=values,
        label=f"fedgr {EVIL}",
    )
    path = write_run(tmp_path / "runs", "mine", training=SMALL)
    record = (path / "run.json").read_text()
    names = json.dumps(f"m {EVIL}")
    record = record.replace('"method": "mine"', f'"method": {names}').replace('"cpu"', names)
    (path / "run.json").write_text(record)
    assert flnl("report", tmp_path / "runs", "-o", tmp_path / "site").code == 0
    found = pages(tmp_path / "site")  # no element has a handler, scripts end where they should
    for name, page in found.items():
        assert set(page.scripts) <= {"titles", "board", "curves", None}, name
        assert "alert" not in page.scripts.get(None, "")
        for kind in ("titles", "board", "curves"):
            json.loads(page.scripts.get(kind, "{}"))
    for file in (tmp_path / "site").rglob("*.html"):
        assert "\x1b" not in file.read_text()
        assert "<img" not in file.read_text()
    for file in (tmp_path / "site" / "data").iterdir():
        assert not re.search("[<>&\u2028\x1b]", file.read_text())
    evil = [page for page in found.values() if "alert(1)" in page.words]
    assert len(evil) >= 4  # the text is shown: on two methods' pages and two runs'


def test_data_cannot_end_its_script_and_reads_as_before():
    text = str(script_data({EVIL: [EVIL]}))
    assert json.loads(text) == {EVIL: [EVIL]}
    assert not re.search("[<>&\u2028\x1b]", text)
    assert shown("a\x1b[31m\nb\u2028") == "a\\x1b[31m\nb "


# -- files -------------------------------------------------------------------------------------------
def test_a_report_is_replaced_as_a_whole_and_anything_else_is_left_alone(site, tmp_path):
    runs = site.parent / "runs"
    (site / "runs" / "old.html").touch()
    assert flnl("report", runs, "-o", site).code == 0
    assert not (site / "runs" / "old.html").exists()
    (tmp_path / "thesis.txt").touch()
    done = flnl("report", runs, "-o", tmp_path)
    assert (done.code, "holds files that are not of a report" in done.errors[-1]) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert sorted(path.name for path in site.parent.iterdir()) == ["runs", "site"]


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_report_that_is_killed_leaves_a_whole_site_and_the_next_one_sweeps(site, when):
    pid = os.fork()
    if pid == 0:  # this process dies where a SIGKILL could come
        _die(when)
        write_report(site.parent / "runs", site)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (site / "index.html").exists()
    assert (site / "tables" / "last10.csv").exists()
    write_report(site.parent / "runs", site)
    assert sorted(path.name for path in site.parent.iterdir()) == ["runs", "site"]


def _die(when):
    swap, rename = atomic_files._exchanged, os.replace

    def die(*paths):
        {"before": print, "between": rename, "after": swap}[when](*paths)
        os._exit(9)

    if when == "between":  # the two renames that are not one step
        os.replace = die
    else:
        atomic_files._exchanged = die


@pytest.mark.parametrize("name", ["NOTES.md", ".git/config", "runs/mine.txt", "data/mine/x.js"])
def test_files_of_the_user_in_a_report_keep_it_from_being_replaced(site, name):
    mine = site / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    done = flnl("report", site.parent / "runs", "-o", site)
    assert (done.code, "holds files that are not of a report" in done.errors[-1]) == (2, True)
    assert mine.read_text() == "mine"
    shutil.rmtree(mine.parent) if mine.parent.name in (".git", "mine") else mine.unlink()


def test_a_link_to_a_report_stays_a_link_and_the_current_folder_stays(site, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert flnl("report", site.parent / "runs", "-o", tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "index.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    monkeypatch.chdir(tmp_path / "real")
    done = flnl("report", site.parent / "runs", "-o", ".")
    assert (done.code, "is the current folder" in done.errors[-1]) == (2, True)


@pytest.mark.parametrize(("where", "message"), [("no/site", "there is no folder"), ("file", "is a file")])
def test_a_place_that_cannot_hold_a_site_is_refused(tmp_path, where, message):
    write_run(tmp_path / "runs", training=SMALL)
    (tmp_path / "file").touch()
    done = flnl("report", tmp_path / "runs", "-o", tmp_path / where)
    assert (done.code, message in done.errors[-1]) == (2, True)


def test_a_folder_without_finished_runs_has_no_report(tmp_path):
    write_run(tmp_path / "runs", status="failed")
    done = flnl("report", tmp_path / "runs", "-o", tmp_path / "site")
    assert (done.code, "there is no finished run" in done.errors[-1]) == (2, True)
    assert not (tmp_path / "site").exists()


def test_a_report_without_jinja_says_what_to_install(site, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    done = flnl("report", site.parent / "runs", "-o", site)
    assert (done.code, "pip install 'flnl-bench[report]'" in done.errors[-1]) == (2, True)


# -- curves ------------------------------------------------------------------------------------------
def test_long_curves_are_thinned_and_keep_their_end():
    assert thinned(5) == [0, 1, 2, 3, 4]
    assert thinned(0) == []
    places = thinned(1001)
    assert len(places) <= 200
    assert places[-1] == 1000


def test_a_mean_is_over_the_seeds_that_know():
    nan = math.nan
    assert mean_curve(map(np.array, ([1.0, nan, 5.0], [3.0, nan, nan]))) == {
        "round": [1, 2, 3],
        "mean": [2.0, None, 5.0],
        "low": [1.0, None, 5.0],
        "high": [3.0, None, 5.0],
    }
    assert mean_curve(map(np.array, ([nan], []))) is None


def test_values_that_are_no_numbers_are_gaps_of_a_curve():
    curve = curve_of([1, 0.123456, None, math.inf, "2"])
    assert plain(curve) == [1.0, 0.1235, None, None, None]
    assert is_known(curve)
    assert not is_known(curve_of([None]))


def test_names_of_pages_differ_also_where_names_are_alike():
    assert slugs_of(["A b", "a-b", "a-b-2", "a b", "/"]) == ["a-b", "a-b-2", "a-b-2-2", "a-b-3", "unnamed"]
