"""Tables that people can cite, from the run.json files of a results folder; no torch, no training.

The package is called `leaderboards`, because `leaderboard` would hide the function `flnl_bench.leaderboard`.
"""
