"""Whole runs: their plans, recipes and records."""
