"""Gradient projection for any nn.Module: inputs of layers, their subspaces, steps outside them."""
