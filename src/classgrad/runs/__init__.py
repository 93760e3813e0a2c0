"""Runs: their plans, recipes and records."""
