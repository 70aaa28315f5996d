"""Tables that people can cite, from the run.json files of a results folder; no torch, no training."""
