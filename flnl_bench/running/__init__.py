"""One run: its options, its configuration, and its execution."""
