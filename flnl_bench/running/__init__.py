"""One run: asked for, resolved, played."""
