"""`python -m flnl_bench` is `flnl-bench`."""

from flnl_bench.cli import main

if __name__ == "__main__":  # worker processes import this file
    main()
