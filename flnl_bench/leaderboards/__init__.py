"""Tables that people can cite, from the run.json files of any results folder; no torch, no training."""
