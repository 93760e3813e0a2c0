"""Tensors as safetensors files that any reader understands, and back with their strides."""

import json
import math
from collections.abc import Iterator
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.errors import shown

# What every version of safetensors knows. Other dtypes are stored as bytes.
NATIVE = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
AS_BYTES = (
    torch.complex128,
    torch.complex64,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*NATIVE, *AS_BYTES)}


def to_storage(tensor: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return a contiguous tensor to store, without a copy if possible, and the original's form.

    The form includes the strides, because kernels choose the order of their sums by them: a weight
    that was channels_last and came back otherwise would not give the same bits. Only gaps between
    the elements of a slice are dropped.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_meta or dtype not in DTYPES:
        raise TypeError(f"a tensor of {dtype}, {tensor.layout}, on {tensor.device}")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if not _dense(tensor.shape, tensor.stride()):
        tensor = tensor.clone()
    form = {"dtype": dtype, "shape": list(tensor.shape), "strides": list(tensor.stride())}
    flat = tensor.as_strided((tensor.numel(),), (1,))
    if tensor.dtype not in NATIVE:
        return flat.view(torch.uint8), form
    return flat.view(tensor.shape) if tensor.is_contiguous() else flat, form


def from_storage(stored: Tensor, dtype: Any, shape: Any, strides: Any) -> Tensor:
    """Return the tensor that `to_storage` was given."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BadCheckpoint("a tensor of an unknown dtype")
    if not _counts(shape) or not _counts(strides) or len(shape) != len(strides):
        raise BadCheckpoint("a tensor without a proper shape")
    if math.prod(max(size, 1) for size in shape) >= 2**63:  # too large for torch, even beside a 0
        raise BadCheckpoint("a tensor without a proper shape")
    wanted = DTYPES[dtype]
    stored_dtype = wanted if wanted in NATIVE else torch.uint8
    elements = math.prod(shape) * (wanted.itemsize // stored_dtype.itemsize)
    if stored.dtype != stored_dtype or stored.numel() != elements or not _dense(shape, strides):
        raise BadCheckpoint("a tensor whose elements do not fit its shape")
    # A copy, because data from a file can have any alignment. Memory that torch allocates is
    # aligned as it was, and kernels may choose the order of their sums by that as well.
    return stored.reshape(-1).clone().view(wanted).as_strided(shape, strides)


def file_pieces(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file piece by piece.

    `safetensors.torch.save` refuses tensors that share memory, and holds a copy of all of them.
    """
    # The widest dtypes first, so that all elements are aligned in the file.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    header, end = {}, 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": NATIVE[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        yield tensor.reshape(-1).view(torch.uint8).numpy().data


def from_file(content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # safetensors does not document which errors it raises
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise BadCheckpoint(f"not a safetensors file ({shown(reason[:100])})") from None


def _dense(shape: Any, strides: Any) -> bool:
    """Tell whether these strides lay the elements out with neither gaps nor overlaps."""
    if 0 in shape:
        return True
    step = 1
    sides = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1]
    for stride, size in sorted(sides):
        if stride != step:
            return False
        step *= size
    return True


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)
