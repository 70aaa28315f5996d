"""The engine next to other programs for federated learning; `python -m benchmarks.peers`."""
