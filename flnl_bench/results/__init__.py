"""What happened in a run, as files that can be trusted."""
