"""The site: pages from templates, data for their scripts, tables to download, scripts and styles.

It opens from disk: a page requests only files of the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.atomic_files import json_text, partial_folder, replace_folder
from flnl_bench.engine.ledger import sentence
from flnl_bench.errors import BadInput
from flnl_bench.escaping import lines
from flnl_bench.leaderboards.formats import FORMATS
from flnl_bench.leaderboards.metrics import COST, class_survival
from flnl_bench.leaderboards.pandas_api import leaderboard, load_results
from flnl_bench.leaderboards.render import cost_table
from flnl_bench.method_facts import Facts, facts_of
from flnl_bench.report.gather import CURVES, Report
from flnl_bench.results.run_record import METRICS

if TYPE_CHECKING:
    import jinja2

    from flnl_bench.leaderboards.table import Row, Table

STATIC = files("flnl_bench.report") / "static"
GENERATOR = "flnl-bench report"  # in every page: such a folder may be replaced
DOWNLOAD_TITLES = {"last10": "Last-10 accuracy", "best": "Best accuracy", COST: "Cost"}
DOWNLOAD_FORMATS = ("csv", "md", "latex", "json")
REFERENCES = ("fedavg", "fedavg/strong")  # drawn next to every method
MAIN_PAGES = ("index.html", "compare.html", "cost.html")
SUBFOLDERS = {  # with the endings of their files
    "methods": (".html",),
    "runs": (".html",),
    "data": (".js",),
    "tables": tuple(FORMATS[name].ending for name in DOWNLOAD_FORMATS),
}


def write_report(
    folder: str | os.PathLike[str], site: str | os.PathLike[str], *, with_published: bool = False
) -> Path:
    """Make a static site of all finished runs below a folder, and return its first page.

    An existing site is replaced as a whole; any other folder with files in it is refused.
    """
    folder, site = Path(folder), Path(site).resolve()  # the folder behind a link, not the link
    results = load_results(folder, with_published=with_published)
    check_site(site)
    if not results.finished:
        raise BadInput(f"there is no finished run below {folder}")
    environment = _environment()
    with partial_folder(site) as partial:
        _write(Report(results), environment, partial)
        replace_folder(site, partial)
    return site / "index.html"


def check_site(site: Path) -> None:
    """Refuse a folder that cannot be written to, or that holds anything but a report."""
    if not site.parent.is_dir():
        raise BadInput(f"there is no folder {site.parent} to make {site.name} in")
    if site.exists() and not site.is_dir():
        raise BadInput(f"{site} is a file; a report is a folder")
    if Path.cwd().is_relative_to(site):
        raise BadInput(
            f"{site} is the current folder, which would be replaced; choose a folder in it, as in site"
        )
    foreign = next((path for path in sorted(site.rglob("*")) if not _ours(path.relative_to(site))), None)
    index = site / "index.html"
    if foreign is None and index.is_file() and GENERATOR.encode() not in index.read_bytes()[:2000]:
        foreign = index
    if foreign is not None:
        raise BadInput(f"{site} holds files that are not of a report ({foreign.name}); choose another folder")


def _ours(path: Path) -> bool:
    """Whether a report may have such a file or folder."""
    if len(path.parts) == 1:
        return path.name in (*MAIN_PAGES, *SUBFOLDERS) or (STATIC / path.name).is_file()
    return len(path.parts) == 2 and path.suffix in SUBFOLDERS.get(path.parts[0], ())


# -- writing -----------------------------------------------------------------------------------------
def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError:
        raise BadInput("a report needs Jinja2: pip install 'flnl-bench[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("flnl_bench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.filters["data"] = script_data
    environment.globals |= {"generator": GENERATOR, "curves": CURVES, "metrics": METRICS}
    environment.globals |= {"sentence": sentence, "vars": vars}
    return environment


def shown(value: Any) -> Any:
    """Return a text without invisible characters, and a number without superfluous digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def script_data(value: Any) -> Any:
    """Return JSON that can neither end its element nor a line of a script, even with foreign text in it."""
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

    for name in SUBFOLDERS:
        (site / name).mkdir()
    for file in STATIC.iterdir():
        (site / file.name).write_bytes(file.read_bytes())
    page("index.html", "index.html", board=report.board(), downloads=_downloads(report, site))
    page("compare.html", "compare.html", names=report.method_slugs)
    page("cost.html", "cost.html", tables=[cost_table(table, paper=True) for table in report.tables])
    for label, slug in report.method_slugs.items():
        data = f"flnl.take({script_data(slug)}, {script_data(report.method(label))});\n"
        (site / "data" / f"{slug}.js").write_text(data, encoding="utf-8")
        rows = report.rows_of(label)
        page(
            f"methods/{slug}.html",
            "method.html",
            label=label,
            slug=slug,
            rows=rows,
            about=known_facts(rows),
            references=[
                report.method_slugs[n] for n in REFERENCES if n in report.method_slugs and n != label
            ],
            hyperparameters=hyperparameter_lines(rows),
        )
    for table in report.tables:
        for row in table.rows:
            for record in row.records:
                survival = class_survival(record)
                path = f"runs/{report.run_slugs[record.folder]}.html"
                page(
                    path, "run.html", record=record, config=record.config, label=row.label, survival=survival
                )


def _downloads(report: Report, site: Path) -> list[tuple[str, list[str]]]:
    """Write the tables in every format; return the names of the files by title."""
    results, downloads = report.results, []
    for metric, title in DOWNLOAD_TITLES.items():
        board = leaderboard(results, metric, paper=True)
        names = []
        for name in DOWNLOAD_FORMATS:
            file = f"tables/{metric}{FORMATS[name].ending}"
            (site / file).write_text(FORMATS[name].write(board), encoding="utf-8")
            names.append(file)
        downloads.append((title, names))
    return downloads


def hyperparameter_lines(rows: Sequence[tuple[Table, Row]]) -> list[dict[str, Any]]:
    """Return name, value, default and allowed values of each hyper-parameter, over all tables of a method.

    A value that differs between tables is written with the titles of its tables.
    """
    about = known_facts(rows)["hyperparameters"]
    written = []
    for key in dict.fromkeys(key for _, row in rows for key in row.hyperparameters):
        values: dict[str, list[str]] = {}
        for table, row in rows:
            if key in row.hyperparameters:
                values.setdefault(str(shown(row.hyperparameters[key])), []).append(table.protocol.title)
        known = about.get(key, {"type": "", "default": "", "range": None})
        kind = re.sub(r"typing\.|Literal", "", known["type"]).replace("'", "")
        default = str(shown(known["default"]))
        several = "; ".join(f"{value} ({', '.join(titles)})" for value, titles in values.items())
        written.append(
            {
                "name": key,
                "value": next(iter(values)) if len(values) == 1 else several,
                "default": default,
                "allowed": f"{kind} {known['range'] or ''}".strip(),
                "changed": key in about and set(values) != {default},
            }
        )
    return written


def known_facts(rows: Sequence[tuple[Table, Row]]) -> Facts:
    """Return the facts about the method of some rows; the method of an imported run may not be installed."""
    try:
        return facts_of(rows[0][1].method)
    except BadInput:
        return {"description": "", "reference": "", "hyperparameters": {}}
