"""How fast the engine is, how its cost grows and where its time goes; `python -m benchmarks.speed`."""
