"""One run: its configuration, how it is resolved from what is asked, and how it is played."""
