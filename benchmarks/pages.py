"""Fill the tables of README.md and docs/baselines.md, draw the picture of README.md (`-m benchmarks.pages`).

A table is between the comment that names its command and END; `<!-- table TITLE: COMMAND -->` takes one of
several tables. Without published runs, pages stay as they are. `-m benchmarks.pages RUNS` draws the picture
from a folder of runs instead.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.results.published import published_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flnl_bench.results.run_record import RunRecord

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "baselines.md")
PICTURES = ROOT / "docs" / "pictures"
END = "<!-- end of the table -->"
FILLED = re.compile(rf"(<!-- table( [^:\n]+)?: (.+?) -->\n\n).*?(?={END})", re.DOTALL)
METHODS = ("fedavg", "fedavg/strong", "fedgr")  # in the picture
LIGHT, DARK = "#1f2328", "#e6edf3"  # text on a light and on a dark page


def main(runs: str | None = None) -> None:
    """Rewrite the tables of all pages and the picture."""
    published = published_runs()[0]
    if published:
        for page in PAGES:
            page.write_text(filled(page.read_text(), printed))
    if runs or published:
        draw_front(Path(runs) if runs else published)


def filled(page: str, run: Callable[[list[str]], str]) -> str:
    """Return the page with the tables that `run` returns for the arguments of each of its commands."""
    return FILLED.sub(lambda match: match[1] + brief(run(shlex.split(match[3])), match[2] or ""), page)


def brief(tables: str, title: str = "") -> str:
    """Return titles, in bold, and tables without notes; only those whose title begins with `title`."""
    titles = re.sub(r"(?m)^#+ (.*)$", r"**\1**", tables)
    kept, wanted = [], not title
    for part in titles.split("\n\n"):
        if part.startswith("**"):
            wanted = part.startswith("**" + title.strip())
        if wanted and part.startswith(("**", "| ")):
            kept.append(part)
    if not kept:
        raise ValueError(f"no table has the title {title.strip()!r}")
    return "".join(f"{part.strip()}\n\n" for part in kept)


def printed(arguments: list[str]) -> str:
    """Return the output of the command, without the user's runs."""
    command = [sys.executable, "-m", "flnl_bench", *arguments]
    return subprocess.run(command, cwd=ROOT / "docs", check=True, stdout=subprocess.PIPE, text=True).stdout


def draw_front(runs: Path | Sequence[RunRecord]) -> None:
    """Draw the curves of three methods under symmetric noise, for light and for dark pages."""
    from flnl_bench.methods import declaration
    from flnl_bench.plots.rounds import curves
    from flnl_bench.plots.style import save

    chosen = {"dataset": "digits", "partition": "iid", "setting": "sym-1.0", "preset": "quick"}
    for name, colour in (("light", LIGHT), ("dark", DARK)):
        figure = curves(runs, method=list(METHODS), **chosen)
        figure.set_size_inches(6.4, 3.2)
        for text in figure.legends[0].get_texts():
            text.set_text(declaration(text.get_text()).title)
        recolour(figure, colour)
        save(figure, PICTURES / f"front-{name}.svg")


def recolour(figure: Figure, colour: str) -> None:
    """Make the background transparent, and text, axes and black lines of one colour."""
    from matplotlib.lines import Line2D
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    figure.patch.set_alpha(0)
    for axis in figure.axes:
        axis.patch.set_alpha(0)
        axis.tick_params(colors=colour)
    for text in figure.findobj(Text):
        text.set_color(colour)
    for spine in figure.findobj(Spine):
        spine.set_edgecolor(colour)
    for line in figure.findobj(Line2D):
        if line.get_color() == "#000000":
            line.set(color=colour, markerfacecolor=colour, markeredgecolor=colour)


if __name__ == "__main__":
    main(*sys.argv[1:])
