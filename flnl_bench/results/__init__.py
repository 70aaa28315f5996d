"""The files of runs: records, rounds, beliefs, archives, locks."""
