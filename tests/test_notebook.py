"""Boards and runs in a notebook: with rich's display of notebooks, and in a real kernel."""

from __future__ import annotations

import pytest
import rich.console
from synthetic_runs import write_grid

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.pandas_api import leaderboard
from flnl_bench.running.api import run

SMALL = {"rounds": 2, "clients": 4, "epochs": 1, "samples": 200}
GRID = {"fedavg": {"sym-1.0": (20.0, 22.0)}, "fedgr": {"sym-1.0": (70.0, 74.0)}}


def test_a_board_is_text_where_rich_would_display(tmp_path, monkeypatch):
    write_grid(tmp_path, GRID)
    board = leaderboard(tmp_path)
    expected = str(board)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert str(leaderboard(tmp_path)) == expected
    assert "fedgr" in expected


def test_progress_true_shows_one_line(tmp_path, capsys):
    run("fedavg", "sym-1.0", out=tmp_path, progress=True, **SMALL)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\r") == 2
    assert shown.err.split("\r")[-1].startswith(
        "fedavg on digits · iid · sym-1.0 · quick · seed 1: round 2 of 2, "
    )
    assert shown.err.endswith("\n")


def test_progress_false_shows_nothing_and_a_number_is_refused(tmp_path, capsys):
    run("fedavg", "sym-1.0", out=tmp_path, progress=False, **SMALL)
    assert capsys.readouterr().err == ""
    with pytest.raises(BadInput, match="progress"):
        run("fedavg", "sym-1.0", out=tmp_path, progress=3, **SMALL)


@pytest.mark.slow
def test_a_kernel_shows_a_board_once(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    write_grid(tmp_path, GRID)
    cells = [
        f"import flnl_bench as fb\nboard = fb.leaderboard({str(tmp_path)!r})\nboard",
        "print(len(str(board)) > 100)",
        "print(board)",
        f"fb.run('fedavg', 'sym-1.0', out={str(tmp_path / 'new')!r}, progress=True, rounds=2, clients=4, "
        "epochs=1, samples=200)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    board, text, printed, ran = (cell.outputs for cell in notebook.cells)
    assert [output.output_type for output in board] == ["execute_result"]
    assert board[0].data["text/html"].count("<table>") == 1
    assert [output.text for output in text] == ["True\n"]
    assert [output.name for output in printed] == ["stdout"]
    assert printed[0].text.count("digits · iid") == 1
    assert "round 2 of 2" in "".join(output.text for output in ran if output.output_type == "stream")
