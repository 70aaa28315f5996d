"""The LaTeX tables compile, and fit the page; skipped where there is no TeX."""

from __future__ import annotations

import math
import re
import shutil
import subprocess

import pytest
from command_line import flnl
from synthetic_runs import hyperparameters_of, write_grid, write_run

from flnl_bench.leaderboards.comparability import SETTINGS
from flnl_bench.methods import declarations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not on this machine"),
]

PAPER = {"dataset": "cifar10", "preset": "paper"}
SWEPT = {"lambda_b": 0.5, "lambda_r": 0.2, "gamma_g": 0.95, "gamma_l": 0.999}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The paper's columns and methods, a row with a long name, one with a name of LaTeX's own signs."""
    out = tmp_path_factory.mktemp("runs")
    wide = dict.fromkeys(SETTINGS, (71.11, 88.88, 99.99))
    methods = [name for name, declared in declarations().items() if declared.place < math.inf]
    write_grid(out, dict.fromkeys(methods, wide), changed={}, **PAPER)
    values = {**hyperparameters_of("fedgr", "cifar10", "paper"), **SWEPT}
    write_run(out, "fedgr", hyperparameters=values, changed=SWEPT, **PAPER)
    write_run(out, "my_50%_{m}&$^~#", **PAPER)
    return out


@pytest.mark.parametrize("page", ["", "twocolumn"])
@pytest.mark.parametrize(
    "more",
    [
        ["--against", "fedavg"],
        ["--paper"],
        ["--columns", "sym-1.0,Avg,place", "--rows", "fedgr,fedavg", "--no-spread", "--no-notes"],
    ],
)
def test_the_paper_s_table_compiles_and_no_box_is_too_wide(folder, tmp_path, page, more):
    words = ["--caption", "Accuracy in % & more: 1_2 ± 3", "--label", "tab:main"]
    assert flnl("leaderboard", folder, *more, *words, "-o", tmp_path / "table.tex").code == 0
    (tmp_path / "page.tex").write_text(
        f"\\documentclass[{page}]{{article}}\n\\usepackage{{booktabs,graphicx}}\n"
        "\\begin{document}\nTable~\\ref{tab:main}\n\\input{table}\n\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    for _ in range(2):  # the second time knows the label
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, re.findall(r"^!.*", done.stdout, re.M)
    assert "undefined" not in done.stdout
    assert re.findall(r"Overfull \\hbox.*", done.stdout) == []
    assert (tmp_path / "page.pdf").stat().st_size > 0
