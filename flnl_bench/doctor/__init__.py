"""What `flnl-bench doctor` looks at: machine, data, folders, equal numbers, speed, abilities of torch."""
