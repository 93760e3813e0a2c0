"""From embeddings to predictions: scores of heads and prototypes, calibration, accuracy."""
