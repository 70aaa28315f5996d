"""The results of runs, as files."""
