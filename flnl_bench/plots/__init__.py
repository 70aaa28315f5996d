"""Pictures of runs, as functions that return a matplotlib figure; `flnl-bench plot` calls them.

`source` is results, a frame of runs, a run, a folder of one or many runs, or several of these; filters
(method, dataset, partition, setting, preset, seed) select runs by one name or several.
"""

from flnl_bench.plots.budget import budget
from flnl_bench.plots.judgements import fscore, noise, sieve, survival
from flnl_bench.plots.rankings import cd, profile, ranks
from flnl_bench.plots.rounds import curves, memorization, observed_memorization, pair
from flnl_bench.plots.scenarios import partition, transitions
from flnl_bench.plots.style import Figure, check_file, look_of, paper_size, save
from flnl_bench.plots.summaries import ablation, cost, grid

PLOTS = {  # by the name of the kind
    draw.__name__: draw
    for draw in (
        *(partition, transitions, curves, memorization, sieve),
        *(noise, fscore, survival, cost, budget, ablation, grid),
        *(ranks, cd, profile),
    )
}

__all__ = [
    "PLOTS",
    "Figure",
    "check_file",
    "look_of",
    "observed_memorization",
    "pair",
    "paper_size",
    "save",
    *PLOTS,
]
