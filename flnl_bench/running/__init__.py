"""One run: its options, its resolved configuration, and the runner."""
