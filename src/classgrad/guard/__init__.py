"""Gradient projection in a training loop of your own."""
