"""Gradient projection in your own training loop."""
