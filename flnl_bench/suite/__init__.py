"""Suites: many runs from one file, over processes or machines."""
