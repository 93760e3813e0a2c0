"""Gradient projection for any nn.Module: inputs of layers, subspaces, projected steps."""

from classgrad.core import attention, recurrent
from classgrad.core.layers import (
    LayerKind,
    Matrix,
    Site,
    register_layer,
    register_norm,
    sites,
    tap,
)
from classgrad.core.projector import Projector
from classgrad.core.subspace import Representation, Subspace

__all__ = [
    "LayerKind",
    "Matrix",
    "Projector",
    "Representation",
    "Site",
    "Subspace",
    "attention",
    "recurrent",
    "register_layer",
    "register_norm",
    "sites",
    "tap",
]
