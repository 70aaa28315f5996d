"""Rounds of a method over clients: batches, steps, tests."""
