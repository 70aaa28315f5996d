"""Experiments that look into training itself instead of comparing methods."""
