"""Scripts that turn recorded runs into the tables and curves of docs/."""
