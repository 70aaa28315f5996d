"""The tables of docs/fedgr.md from the published runs: `python -m benchmarks.fedgr_tables`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from flnl_methods.fedgr import FedGR
from flnl_methods.fedgr_released import FedGRReleased

import flnl_bench as fb
from flnl_bench.leaderboards.metrics import class_recall
from flnl_bench.methods import hyperparameters
from flnl_bench.results.archive import import_runs

COMPARED = ("fedavg", "fedavg/strong", "fedgr", "fedgr/released")
SHOWN_SETTINGS = ("sym-0.6", "sym-1.0", "asym-1.0", "mixed-1.0")
RELEASED = hyperparameters(FedGRReleased).keys() - hyperparameters(FedGR).keys() - {"release"}
SWITCHES = Path(__file__).parents[1] / "results" / "studies" / "fedgr-switches.zip"


def main() -> None:
    """Print both kinds of tables."""
    runs = finished(fb.load_results(Path("nothing"), with_published=True))
    with tempfile.TemporaryDirectory() as folder:
        import_runs(SWITCHES, Path(folder))
        changed = finished(fb.load_results(Path(folder)))
    show(switches(pd.concat([runs[runs.method.isin(COMPARED[2:])], changed])))
    for partition in ("iid", "dir-0.3"):
        show(measured(runs[runs.partition == partition], partition))


def finished(results: fb.Results) -> pd.DataFrame:
    """Return one row per run of these methods on digits, with the diagnostics of its last round."""
    runs = results.runs[results.runs.method.isin(COMPARED) & (results.runs.dataset == "digits")]
    last = results.rounds_of(runs).sort_values("round").groupby("run_dir").tail(1).set_index("run_dir")
    wanted = [name for name in last.columns if name.startswith("diagnostics_")]
    return runs.join(last[wanted].rename(columns=lambda name: name.removeprefix("diagnostics_")), "run_dir")


def measured(runs: pd.DataFrame, partition: str) -> Iterator[Sequence[str]]:
    """Return accuracies of four methods, and the last diagnostics of the two that judge labels."""
    both, shown = COMPARED[2:], "`fedgr`; released"
    rows: list[tuple[str, Sequence[str], Callable[[pd.DataFrame], str]]] = [
        *((f"`{method}`", [method], accuracy) for method in COMPARED),
        *((f"sieve of `{method}`: F-score (precision, recall)", [method], sieve) for method in both),
        (
            f"Pearson correlation of r_k with the truth: {shown}",
            both,
            lambda r: ratio(r.noise_ratio_correlation),
        ),
        (f"classes of ten that the sieve loses: {shown}", both, lost_classes),
        (f"samples in the store, of these right (%): {shown}", both, store),
        (f"wrong labels memorised (%): `fedavg`; control; {shown}", COMPARED, lambda r: percent(r.memorised)),
    ]
    yield [partition, *(f"`{setting}`" for setting in SHOWN_SETTINGS)]
    for title, methods, text in rows:
        cells = [[runs[(runs.method == m) & (runs.setting == s)] for m in methods] for s in SHOWN_SETTINGS]
        yield [title, *("; ".join(text(each) for each in cell) for cell in cells)]


def switches(runs: pd.DataFrame) -> Iterator[Sequence[str]]:
    """Return last-10 accuracy with each switch alone and its effect, over the seeds that every row has."""
    cells = [(setting, partition) for partition in ("iid", "dir-0.3") for setting in ("sym-0.6", "mixed-1.0")]
    runs = runs[[cell in cells for cell in zip(runs.setting, runs.partition, strict=True)]]
    names = pd.Series([switch_of(*run) for run in zip(runs.method, runs.changed, strict=True)], runs.index)
    runs = runs.assign(name=names).drop_duplicates(["name", "setting", "partition", "seed"])
    table = runs.pivot(index="seed", columns=["name", "setting", "partition"], values="last10").dropna()
    yield [
        f"seed{'s' * (len(table) > 1)} {', '.join(map(str, table.index))}",
        *(f"`{setting}`, {partition}" for setting, partition in cells),
    ]
    yield ["`fedgr`", *(spread(table["", *cell]) for cell in cells)]
    for name in [*sorted(set(names) - {"", "all"}), "all"]:
        title = "all: `fedgr/released`" if name == "all" else f"`{name}`"
        yield [title, *(effect(table[name, *cell], table["", *cell]) for cell in cells)]


def switch_of(method: str, changed: Mapping[str, object]) -> str:
    """Return the switch that is on: "all" as released, none by the equations."""
    if method == "fedgr":  # its switches were hyper-parameters of the method when these runs were made
        return ", ".join(changed)
    return ", ".join(name for name in RELEASED if name not in changed) if changed else "all"


def effect(values: pd.Series, before: pd.Series) -> str:
    """Write the mean over seeds, and the mean of the differences per seed."""
    return f"{values.mean():.1f} ({spread(values - before, '+z.1f')})".replace("-", "−")


def accuracy(runs: pd.DataFrame) -> str:
    """Write last-10 over the seeds, and the mean of the best rounds."""
    return f"{spread(runs.last10)} ({runs.best.mean():.1f})"


def spread(values: pd.Series, form: str = ".1f") -> str:
    """Write mean ± standard deviation."""
    return f"{values.mean():{form}}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")


def sieve(runs: pd.DataFrame) -> str:
    """Write F-score, precision and recall of the samples called clean."""
    return f"{ratio(runs.sieve_f_score)} ({ratio(runs.sieve_precision)}, {ratio(runs.sieve_recall)})"


def lost_classes(runs: pd.DataFrame) -> str:
    """Write the mean number of classes with less than half of their right labels called clean."""
    recalls = [class_recall(Path(run) / "beliefs.npz") for run in runs.run_dir]
    assert all(recalls), "a run has no beliefs"
    lost = [share for recall in recalls for share in recall if share is not None and share < 0.5]
    return f"{len(lost) / len(runs):.1f}"


def store(runs: pd.DataFrame) -> str:
    """Write the share of samples with a label in the store, and the share of these labels that are right."""
    return f"{percent(runs.pseudo_label_coverage)}, {percent(runs.pseudo_label_accuracy)}"


def ratio(values: pd.Series) -> str:
    """Write a number from −1 to 1, without its leading zero."""
    return f"{values.mean():.2f}".replace("0.", ".", 1).replace("-", "−")


def percent(values: pd.Series) -> str:
    """Write a whole number, or a dash if there is none."""
    return "–" if values.isna().all() else f"{values.mean():.0f}"


def show(rows: Iterator[Sequence[str]]) -> None:
    """Print a table in Markdown with numbers aligned right."""
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |")
        if number == 0:
            print(f"|---|{'---:|' * (len(row) - 1)}")
    print()


if __name__ == "__main__":
    main()
