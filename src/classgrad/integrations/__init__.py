"""Guards in the training loops of other packages."""
