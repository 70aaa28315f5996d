"""Results as pandas frames, and a leaderboard from a folder, from results or from a filtered frame.

pandas is imported where a frame is asked for: the command line makes leaderboards without it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.config import RUN_NAMES
from flnl_bench.errors import BadInput, require, unknown
from flnl_bench.leaderboards import comparability
from flnl_bench.leaderboards.comparability import Names, chosen
from flnl_bench.leaderboards.comparison import check_row_name
from flnl_bench.leaderboards.formats import FORMATS, html_fragment
from flnl_bench.leaderboards.metrics import COST, check_metric
from flnl_bench.leaderboards.paper import both_protocols, paper_cells, without_paper_numbers
from flnl_bench.leaderboards.render import (
    Layout,
    TextTable,
    agreement_table,
    comparison_table,
    cost_table,
    main_table,
    seed_sets,
)
from flnl_bench.leaderboards.table import SORTS, Table, make_tables, table_warnings
from flnl_bench.results.published import published_run, published_runs, with_counterparts
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import (
    METRICS,
    RUN_FILE,
    RunRecord,
    ScenarioFacts,
    Summary,
    flat_round,
    read_record,
)
from flnl_bench.results.verified import read_status

if TYPE_CHECKING:
    import pandas as pd

_SUMMARY = [part.name for part in dataclasses.fields(Summary)]
_SCENARIO = [part.name for part in dataclasses.fields(ScenarioFacts)]
_CONFIG = ("device", "version")
_RECORD = ("generated", "numbers", "ended", "imported_from", "label", "changed", "published")


@dataclass(frozen=True, repr=False)
class Results:
    """The runs of a results folder, as `load_results` reads them; frames are made on first use."""

    folder: Path
    records: Sequence[RunRecord]  # of all statuses
    problems: Mapping[Path, str] = field(default_factory=dict)  # files that could not be read, and why

    @functools.cached_property
    def finished(self) -> list[RunRecord]:
        """The records of the runs that are done."""
        return [record for record in self.records if record.done]

    @functools.cached_property
    def unfinished(self) -> Mapping[Path, str]:
        """Folders of runs that are not done, by status: running, interrupted or failed."""
        return {record.folder: record.status for record in self.records if not record.done}

    @functools.cached_property
    def runs(self) -> pd.DataFrame:
        """One row per finished run."""
        return runs_frame(self.finished)

    @functools.cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round of all finished runs; their files are read on first use."""
        return rounds_frame(self.finished)

    def rounds_of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return one row per round of some of the runs, where reading all would take long."""
        return rounds_frame(records_of(runs))

    def __repr__(self) -> str:
        counts = {"finished": self.finished, "unfinished": self.unfinished, "unreadable": self.problems}
        text = ", ".join(f"{len(entries)} {name}" for name, entries in counts.items())
        return f"<Results of {self.folder}: {text}>"


def load_results(
    folder: str | os.PathLike[str], *, with_published: bool = False, whole: bool = True
) -> Results:
    """Read the run.json of every run below a folder; `.runs` and `.rounds` are frames of the finished runs.

    Args:
        folder: a results folder; with published runs it may be missing.
        with_published: add the runs that this package ships, except for those that the folder has, too.
        whole: compare the whole summary of each run with its rounds; else only last10, which is quicker.
    """
    require(isinstance(folder, str | os.PathLike), "folder", repr(folder), "the path of a results folder")
    folder = Path(folder)
    if not with_published:
        check_folder(folder)
    records, problems = read_runs(folder, whole=whole) if folder.is_dir() else ([], {})
    if with_published:
        own = {record.identity for record in records if record.done}
        published, unreadable = published_runs()
        records = records + [record for record in published if record.identity not in own]
        problems = {**problems, **unreadable}
    return Results(folder, records, problems)


def check_folder(folder: Path) -> None:
    """Refuse a results folder that does not exist, and say how to make one."""
    if not folder.is_dir():
        raise BadInput(
            f"there is no results folder {folder} (`flnl-bench run` makes results/runs; "
            "--with-published shows the runs that this package ships)"
        )


# -- leaderboards ------------------------------------------------------------------------------------
@dataclass(frozen=True, repr=False)
class Leaderboard:
    """Methods × settings, mean ± standard deviation over seeds, a table for each protocol.

    A notebook shows it, `print` prints the tables of the terminal, and `.frame` has its numbers.
    """

    tables: Sequence[Table]
    metric: str  # cost: the numbers of the tables are last10, and the text tables show costs
    warnings: Sequence[str] = ()  # tables kept apart, runs left out, numbers that may not be compared
    against: str | None = None
    paper: bool = False
    layout: Layout = field(default_factory=Layout)
    problems: Mapping[Path, str] = field(default_factory=dict)  # files that could not be read, and why
    unfinished: Mapping[Path, str] = field(default_factory=dict)  # run folders by status

    @functools.cached_property
    def text_tables(self) -> list[TextTable]:
        """Each table as text, followed by its comparisons; the agreement with the paper comes last."""
        if self.metric == COST:
            return [cost_table(table, paper=self.paper) for table in self.tables]
        texts = []
        for table in self.tables:
            texts.append(main_table(table, paper=self.paper, against=self.against, layout=self.layout))
            if self.against is not None:
                texts.append(comparison_table(table, self.against))
        agreement = agreement_table(self.tables) if self.paper else None
        return texts + ([agreement] if agreement else [])

    @property
    def remarks(self) -> list[str]:
        """The warnings and the numbers of files and runs that are not counted, for formats without stderr."""
        counts = {
            "files could not be read (see .problems)": len(self.problems),
            "runs are not finished (see .unfinished)": len(self.unfinished),
        }
        not_counted = [f"not counted: {count} {text}" for text, count in counts.items() if count]
        return not_counted + [f"warning: {text}" for text in self.warnings]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell and one called `avg` per method, with the columns of the CSV and all digits."""
        import pandas as pd

        from flnl_bench.leaderboards.export import cell_lines, column_names

        frame = pd.DataFrame(cell_lines(self), columns=list(column_names(self)))
        return frame.astype({"count": "Int64"}) if "count" in frame else frame

    @property
    def ranks(self) -> pd.DataFrame:
        """One row per table and method: Avg, mean rank, interval of the place, P(best) and letters."""
        import pandas as pd

        from flnl_bench.leaderboards.export import RANKS, rank_lines

        return pd.DataFrame(rank_lines(self), columns=list(RANKS))

    def to_markdown(self) -> str:
        """Write tables for GitHub and similar sites."""
        return FORMATS["md"].write(self)

    def to_latex(self) -> str:
        r"""Write booktabs tables for \input; the preamble needs booktabs and graphicx."""
        return FORMATS["latex"].write(self)

    def to_csv(self) -> str:
        """Write the frame as text: one line per cell."""
        return FORMATS["csv"].write(self)

    def to_html(self) -> str:
        """Write one page that needs no other file."""
        return FORMATS["html"].write(self)

    def to_json(self) -> str:
        """Write one document with everything: seeds, fingerprints, protocols, hyper-parameters, warnings."""
        return FORMATS["json"].write(self)

    def __str__(self) -> str:
        from flnl_bench.leaderboards.terminal import tables_as_text, width_here

        return "".join(f"{text}\n" for text in self.remarks) + tables_as_text(self.text_tables, width_here())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_fragment(self)


def leaderboard(
    source: Results | pd.DataFrame | str | os.PathLike[str],
    metric: str = METRICS[0],
    datasets: Names = None,
    presets: Names = None,
    against: str | None = None,
    paper: bool = False,
    *,
    methods: Names = None,
    settings: Names = None,
    partitions: Names = None,
    seeds: Names = None,
    without: Sequence[str] = (),
    average: Sequence[str] = (),
    sort: str = "avg",
    layout: Layout | None = None,
) -> Leaderboard:
    """Make tables of all finished runs: methods × settings, mean ± standard deviation over seeds.

    Args:
        source: results, their frame of runs or a part of it, or a results folder.
        metric: last10 (mean of the last ten rounds), best (the best round), a diagnostic of the last round
            (memorised, sieve_f_score, noise_ratio_correlation, …), or cost; at an equal budget, as in
            last10@bytes=200MB, or what is spent until an accuracy, as in bytes@accuracy=80.
        against: Add paired differences to this method, with confidence interval and test.
        paper: Add the paper's numbers, with the difference and the agreement of the orders.
        without: Leave out methods with one of these assumptions (`flnl_bench.assumptions`).
        average: The settings that Avg and rank are over; else those that all rows have.
        sort: The order of the rows: avg, rank, paper, name or a setting.
        layout: The rows and columns that are written, and the form of LaTeX tables.

    `datasets`, `presets`, `methods`, `settings`, `partitions` and `seeds` select runs by their names.
    """
    check_metric(metric)
    if against is not None and metric == COST:
        raise BadInput(
            "paired differences need a metric with one number per run: leave out --against or cost"
        )
    if isinstance(source, str | os.PathLike):
        source = load_results(source, whole=metric != METRICS[0])
    if isinstance(source, Results):
        records, problems, where = source.records, source.problems, f"below {source.folder}"
    else:
        records, problems, where = records_of(source), {}, "in this frame"
    finished = [record for record in records if record.done]
    if not finished:
        raise BadInput(f"there is no finished run {where} (--with-published adds those of this package)")
    finished = comparability.without(finished, [without] if isinstance(without, str) else without)
    only = {"dataset": datasets, "partition": partitions, "setting": settings, "preset": presets}
    tables = make_tables(
        chosen(finished, {**only, "method": methods, "seed": seeds}), METRICS[0] if metric == COST else metric
    )
    if not tables:
        raise BadInput(f"no finished run has a number for {metric}")
    if average:
        tables = [table.of(table.metric, _known_settings(tables, average, "setting")) for table in tables]
    if sort not in SORTS:
        sort = _known_settings(tables, [sort], "order", SORTS)[0]
    tables = [table.sorted(sort) for table in tables]
    layout = layout or Layout()
    layout.check(tables)
    if against is not None:
        check_row_name(tables, against)
    warnings = _warnings(tables, paper=paper and metric != COST)
    unfinished = {record.folder: record.status for record in records if not record.done}
    return Leaderboard(tables, metric, warnings, against, paper, layout, problems, unfinished)


def _known_settings(
    tables: Sequence[Table], names: Sequence[str], what: str, more: Sequence[str] = ()
) -> list[str]:
    """Return the names of settings as the tables have them; a BadInput if no table has one."""
    known = dict.fromkeys(name for table in tables for name in table.settings)
    full = [name if name in known else comparability.full_name("setting", name) for name in names]
    for name, spelling in zip(names, full, strict=True):
        if spelling not in known:
            raise unknown(what, name, [*more, *known])
    return full


def _warnings(tables: Sequence[Table], paper: bool) -> list[str]:
    """Return the warnings about separate tables, different code and seeds, and about the paper's numbers."""
    texts = [
        (table, f"cells have different seeds: {seed_sets(table)}")
        for table in tables
        if len(table.seed_sets) > 1
    ]
    for table in tables if paper else ():
        if not table.protocol.is_paper and any(paper_cells(table, row) for row in table.rows):
            texts.append((table, both_protocols(table)[0]))
        texts += [(table, f"no number of the paper for {text}") for text in without_paper_numbers(table)]
    return table_warnings(tables) + [f"{table.protocol.title}: {text}" for table, text in texts]


# -- frames ------------------------------------------------------------------------------------------
def runs_frame(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Make one row per finished run; options and hyper-parameters have dotted names, as `training.lr`."""
    import pandas as pd

    rows = [_run_row(record) for record in records]
    scenario = (f"scenario.{name}" for name in _SCENARIO)
    fixed = [*RUN_NAMES, *_SUMMARY, *_CONFIG, *scenario, *_RECORD, "code.method", "verification", "run_dir"]
    return pd.DataFrame(rows, columns=None if rows else fixed)


def _run_row(record: RunRecord) -> dict[str, Any]:
    config = record.config
    summary = record.result()
    return {
        **config.names,
        **{name: getattr(summary, name) for name in _SUMMARY},
        **{name: getattr(config, name) for name in _CONFIG},
        **{f"scenario.{name}": getattr(record.scenario, name) for name in _SCENARIO},
        **{name: getattr(record, name) for name in _RECORD},
        **{f"code.{kind}": " ".join(sorted(digests)) for kind, digests in record.code.items()},
        "verification": str(read_status(record)),
        "run_dir": str(record.folder),
        **{name: value for name, value in config.flat().items() if "." in name},
    }


def records_of(frame: pd.DataFrame) -> list[RunRecord]:
    """Read the records of the runs of a frame, or of the part of it that a user has chosen."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise BadInput(f"a frame of runs, results or a folder is needed, not {frame!r}")
    if "run_dir" not in frame.columns:
        raise BadInput("this frame has no column run_dir; use a frame that load_results made")
    published = frame["published"] if "published" in frame.columns else [False] * len(frame)
    ours = {run_dir: flag is True for run_dir, flag in zip(frame["run_dir"], published, strict=True)}
    return with_counterparts(_finished_in(path, published=flag) for path, flag in ours.items())


def _finished_in(run_dir: object, published: bool) -> RunRecord:
    """Read a finished run; a BadInput names the folder and the problem."""
    if not isinstance(run_dir, str):
        raise BadInput(f"run_dir is {run_dir!r} in a row of this frame, not the folder of a run")
    if published and (shipped := published_run(Path(run_dir))):
        return shipped
    try:
        record = read_record(Path(run_dir))
        record.confirmed(record.read_rounds())
    except ValueError as problem:
        raise BadInput(f"{Path(run_dir) / RUN_FILE}: {problem}") from None
    return record


def rounds_frame(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Make one row per round of runs, with the names of the run and its folder."""
    import pandas as pd

    rows = []
    for record in records:
        run = {**record.config.names, "run_dir": str(record.folder)}
        rows += [{**run, **flat_round(row)} for row in record.read_rounds()]
    return pd.DataFrame(rows, columns=None if rows else [*RUN_NAMES, "run_dir", "round"])
