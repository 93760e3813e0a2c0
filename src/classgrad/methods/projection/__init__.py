"""Methods that keep steps out of subspaces."""
