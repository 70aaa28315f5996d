"""The checks of `flnl-bench doctor`: machine, data, folders, reproducibility, speed, features of torch."""
