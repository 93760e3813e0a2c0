"""Weights of a network from a user's own file, which is known by its content."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from classgrad.errors import UserError, shown
from classgrad.networks.trunk import Trunk, WeightSettings

DIGEST = re.compile("sha256:[0-9a-f]{64}")


def with_digest(
    kind: type[WeightSettings], values: Mapping[str, Any]
) -> tuple[dict[str, Any], Path | None]:
    """Return the options of a network with a digest in place of a file of weights, and that file.

    So the same weights are recognised wherever their file is.
    """
    weights = values.get("weights")
    if weights is None or weights in kind.sources or is_digest(weights):
        return dict(values), None
    if not isinstance(weights, str | Path):
        raise UserError(f"weights must be the name of a file (got {shown(repr(weights))})")
    content = read(Path(weights), kind)
    return {**values, "weights": f"sha256:{hashlib.sha256(content).hexdigest()}"}, Path(weights)


def is_digest(weights: object) -> bool:
    """Tell whether this stands for a file, of which only the digest is known."""
    return isinstance(weights, str) and DIGEST.fullmatch(weights) is not None


def read(path: Path, kind: type[WeightSettings]) -> bytes:
    """Return the content of a file of weights, or of the files of a folder."""
    if kind.folder and path.is_dir():
        return b"".join(read(path / name, kind) for name in kind.folder)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        words = " or ".join(kind.sources)
        raise UserError(
            f"there is no file '{shown(path)}': weights are {words}, or a safetensors file"
        ) from None
    except OSError as error:
        raise UserError(f"'{shown(path)}' cannot be read: {error.strerror}") from None


def load_file(trunk: Trunk, path: Path, kind: type[WeightSettings]) -> None:
    """Load the weights in a file or a folder, after their names and shapes were compared."""
    try:
        folder = bool(kind.folder) and path.is_dir()
        tensors = trunk.released(path) if folder else safetensors.torch.load(read(path, kind))
    except UserError:
        raise
    except Exception:  # safetensors does not document which errors it raises
        raise UserError(f"'{shown(path)}' is not a safetensors file, or it is damaged") from None
    refuse_mismatch(trunk, tensors, shown(path))
    trunk.load_state_dict(tensors)


def refuse_mismatch(trunk: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that are not those of a trunk; name the first that is missing or differs."""
    kind = type(trunk).__name__
    needed = trunk.state_dict()
    for name, value in needed.items():
        if name not in tensors:
            raise UserError(f"'{where}' has no '{name}', which {kind} needs")
        if tensors[name].shape != value.shape:
            raise UserError(
                f"'{name}' in '{where}' is {by_edges(tensors[name])}, but {kind} with these "
                f"options needs {by_edges(value)}"
            )
    for name in tensors:
        if name not in needed:
            raise UserError(f"'{where}' has '{shown(name)}', which {kind} does not have")


def by_edges(value: Tensor) -> str:
    """Return the shape of a tensor in words."""
    return " x ".join(map(str, value.shape)) or "a single number"
