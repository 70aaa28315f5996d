"""What new plugins are made of; `example`, `Example` and `EXAMPLE` become the name of the plugin."""
