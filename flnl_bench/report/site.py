"""The site: pages from templates, data for their scripts, tables to download, and what they are styled with.

It opens from disk: no page asks for anything that is not a file beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.atomic_files import json_text
from flnl_bench.engine.ledger import sentence
from flnl_bench.errors import BadInput
from flnl_bench.escaping import lines
from flnl_bench.leaderboards.formats import FORMATS
from flnl_bench.leaderboards.leaderboard import make_leaderboard
from flnl_bench.leaderboards.metrics import COST
from flnl_bench.leaderboards.pandas_api import check_folder
from flnl_bench.leaderboards.render import cost_sheet
from flnl_bench.leaderboards.runs import Found
from flnl_bench.report.gather import CURVES, Report, RunPage, thinned
from flnl_bench.results.run_folder import read_records

if TYPE_CHECKING:
    import jinja2

STATIC = files("flnl_bench.report") / "static"
GENERATOR = "flnl-bench report"  # in every page: such a folder may be replaced
DOWNLOADS = {"last10": "Last-10 accuracy", "best": "Best accuracy", COST: "Cost"}
ENDINGS = ("csv", "md", "latex", "json")
PAGES = ("index.html", "compare.html", "cost.html")
FOLDERS = {  # with the endings of their files
    "methods": (".html",),
    "runs": (".html",),
    "data": (".js",),
    "tables": tuple(FORMATS[name].ending for name in ENDINGS),
}


def write_report(folder: str | os.PathLike[str], site: str | os.PathLike[str]) -> Path:
    """Make a static site of all finished runs below a folder, and return its first page.

    A site that is there already is replaced as a whole; any other folder with files in it is refused.
    """
    folder, site = Path(folder), Path(site).resolve()  # the folder behind a link, not the link
    check_folder(folder)
    check_site(site)
    found = read_records(folder)
    if not found.done:
        raise BadInput(f"there is no finished run below {folder}")
    environment = _environment()
    made = Path(tempfile.mkdtemp(prefix=f".{site.name}.", dir=site.parent))
    try:
        _write(Report(found, folder), environment, made)
        made.chmod(0o755)
        _replace(site, made)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return site / "index.html"


def check_site(site: Path) -> None:
    """Refuse a place that cannot be written to, or that holds anything but a report."""
    if not site.parent.is_dir():
        raise BadInput(f"there is no folder {site.parent} to make {site.name} in")
    if site.exists() and not site.is_dir():
        raise BadInput(f"{site} is a file; a report is a folder")
    if Path.cwd().is_relative_to(site):
        raise BadInput(f"{site} is where you are, and would be replaced; choose a folder in it, as in site")
    foreign = next((path for path in sorted(site.rglob("*")) if not _ours(path.relative_to(site))), None)
    index = site / "index.html"
    if foreign is None and index.is_file() and GENERATOR.encode() not in index.read_bytes()[:2000]:
        foreign = index
    if foreign is not None:
        raise BadInput(f"{site} holds something else than a report ({foreign.name}); choose another folder")


def _ours(path: Path) -> bool:
    """Whether a report may have such a file or folder."""
    if len(path.parts) == 1:
        return path.name in (*PAGES, *FOLDERS) or (STATIC / path.name).is_file()
    return len(path.parts) == 2 and path.suffix in FOLDERS.get(path.parts[0], ())


def _replace(site: Path, made: Path) -> None:
    old = made.with_name(made.name + ".old")
    if site.exists():
        os.replace(site, old)
    os.replace(made, site)
    shutil.rmtree(old, ignore_errors=True)


# -- writing -----------------------------------------------------------------------------------------
def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError:
        raise BadInput("a report needs Jinja2: pip install 'flnl-bench[report]'") from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("flnl_bench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    made.filters["data"] = script_data
    made.globals |= {"generator": GENERATOR, "curves": CURVES, "sentence": sentence, "vars": vars}
    return made


def shown(value: Any) -> Any:
    """A text without characters that cannot be seen, and a number as short as its digits allow."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def script_data(value: Any) -> Any:
    """JSON that can neither end its element nor a line of a script, whatever texts are in it."""
    from markupsafe import Markup

    text = json_text(value)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _write(report: Report, environment: jinja2.Environment, site: Path) -> None:
    def page(path: str, template: str, **values: Any) -> None:
        above = "../" * path.count("/")
        text = environment.get_template(template).render(above=above, report=report, **values)
        (site / path).write_text(text, encoding="utf-8")

    for name in FOLDERS:
        (site / name).mkdir()
    _copy_static(site)
    page("index.html", "index.html", board=report.board(), downloads=_downloads(report, site))
    page("compare.html", "compare.html", names=report.slugs)
    page("cost.html", "cost.html", sheets=[cost_sheet(place.main, paper=True) for place in report.places])
    known = _about_methods()
    for label, slug in report.slugs.items():
        data = f"flnl.take({script_data(slug)}, {script_data(report.method(label))});\n"
        (site / "data" / f"{slug}.js").write_text(data, encoding="utf-8")
        rows = report.rows_of(label)
        about = known.get(rows[0][1].method, {"summary": "", "reference": ""})
        page(f"methods/{slug}.html", "method.html", label=label, slug=slug, rows=rows, about=about)
    labels = {
        run.path: label
        for label in report.slugs
        for _, row in report.rows_of(label)
        for seeds in row.cells.values()
        for run in seeds.values()
    }
    for run in report.pages.values():
        label = labels[run.run.path]
        page(f"runs/{run.slug}.html", "run.html", page=run, label=label, data=_curves(run))


def _copy_static(site: Path) -> None:
    for file in STATIC.iterdir():
        (site / file.name).write_bytes(file.read_bytes())


def _downloads(report: Report, site: Path) -> list[tuple[str, list[str]]]:
    """Write the tables in every format; their names by title."""
    runs = [page.run for page in report.pages.values()]
    found = Found(runs, report.found.unfinished, report.found.problems)
    made = []
    for metric, title in DOWNLOADS.items():
        board = make_leaderboard(found, metric, only={}, paper=True)
        names = []
        for name in ENDINGS:
            file = f"tables/{metric}{FORMATS[name].ending}"
            (site / file).write_text(FORMATS[name].write(board), encoding="utf-8")
            names.append(file)
        made.append((title, names))
    return made


def _curves(page: RunPage) -> dict[str, Any]:
    """The charts of a run."""
    places = thinned(len(page.curves["accuracy"]))
    known = {name: curve for name, curve in page.curves.items() if any(v is not None for v in curve)}
    return {
        "round": [place + 1 for place in places],
        "curves": {name: [curve[place] for place in places] for name, curve in known.items()},
    }


def _about_methods() -> dict[str, Mapping[str, str]]:
    """What the installed methods and their variants say of themselves."""
    from flnl_bench.methods import default_methods

    registry = default_methods()
    return {
        name: {
            "summary": ((cls.__doc__ or "").strip().splitlines() or [""])[0],
            "reference": cls.reference,
        }
        for name in registry.names()
        for cls in (registry.method_class(name),)
    }
