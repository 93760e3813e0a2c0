"""A nested state as a JSON tree and a table of tensors, and back.

Numbers, strings, None, lists and dicts with string keys are stored in the tree as they are. What
JSON cannot express is an object with the key "$", which names its type: a tuple, a dict with other
keys, a float that is not finite, or a tensor, whose elements are in the table. A tree cannot name
code, so decoding one runs none. The table is a safetensors file that any reader understands.
"""

import json
import math
from abc import ABC, abstractmethod
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


def file_pieces(
    tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file piece by piece; the first one is its header.

    `safetensors.torch.save` refuses tensors that share memory, and holds a copy of all of them.
    """
    # The widest dtypes first, so that all elements are aligned in the file.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
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


KIND = "$"  # patterns below have to spell it out
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# Far below the recursion limit of Python and its JSON parser, so that what is written can be read.
DEEPEST = 50

Tree = Any


def encode(state: Any, *, by_place: bool = False) -> tuple[Tree, dict[str, Tensor]]:
    """Return the tree of a state and its tensors, which share memory with the state if possible.

    Subclasses come back as their base type: an OrderedDict as a dict, a Parameter as a tensor.
    Tensors come back on the CPU, with the same strides unless they had gaps.

    With `by_place`, for readers of the tensors alone, these are named by their place in the state
    instead of numbered, and they come back contiguous, so that all of them have their shapes.

    >>> encode({"step": 3, "best": (1.5, float("inf"))})[0]
    {'step': 3, 'best': {'$': 'tuple', 'items': [1.5, {'$': 'float', 'value': 'inf'}]}}
    """
    encoder = _Encoder(by_place=by_place)
    return encoder.value(state), encoder.tensors


def decode(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """Return the state of a tree and its tensors, each of which must be used exactly once."""
    decoder = _Decoder(tensors)
    state = decoder.value(tree)
    if decoder.tensors:
        raise BadCheckpoint(f"{len(decoder.tensors)} tensors belong to nothing in the state")
    return state


class _Walk(ABC):
    """A recursion over nested values that keeps track of its path."""

    def __init__(self, tensors: dict[str, Tensor] | None = None) -> None:
        self.tensors = dict(tensors or {})
        self.keys: list[str | int] = []

    def place(self) -> str:
        """Return the current path, in one line."""
        return "state" + "".join(f"[{key!r}]" for key in self.keys)

    def inside(self, key: str | int, value: Any) -> Any:
        """Convert a value inside the current one."""
        self.keys.append(key)
        converted = self.value(value)
        self.keys.pop()
        return converted

    @abstractmethod
    def value(self, value: Any) -> Any:
        """Convert a value."""


class _Encoder(_Walk):
    def __init__(self, *, by_place: bool) -> None:
        super().__init__()
        self.by_place = by_place

    def value(self, value: Any) -> Tree:
        match value:
            case None | bool():
                return value
            case int():
                return int(value)
            case float() if math.isfinite(value):
                return float(value)
            case float():
                return {KIND: "float", "value": str(float(value))}
            case str():
                return str.__str__(value)
            case Tensor():
                return self.tensor(value)
            case list() | tuple() | dict() if len(self.keys) == DEEPEST:
                raise TypeError(
                    f"the state is nested too deeply, or contains itself: {self.place()}"
                )
            case tuple():
                return {KIND: "tuple", "items": self.sequence(value)}
            case list():
                return self.sequence(value)
            case dict():
                return self.mapping(value)
        raise TypeError(f"cannot be stored: {self.place()}, a {type(value).__name__}")

    def sequence(self, values: list[Any] | tuple[Any, ...]) -> list[Tree]:
        return [self.inside(i, value) for i, value in enumerate(values)]

    def mapping(self, values: dict[Any, Any]) -> Tree:
        for key in values:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"cannot be stored: {self.place()}, which has the key {key!r}")
        if all(isinstance(key, str) and key != KIND for key in values):
            return {self.value(key): self.inside(key, value) for key, value in values.items()}
        items = [[self.value(key), self.inside(key, value)] for key, value in values.items()]
        return {KIND: "dict", "items": items}

    def tensor(self, tensor: Tensor) -> Tree:
        try:
            stored, form = to_storage(tensor.contiguous() if self.by_place else tensor)
        except TypeError as error:
            raise TypeError(f"cannot be stored: {self.place()}, {error}") from None
        name = ".".join(map(str, self.keys)) if self.by_place else str(len(self.tensors))
        while name in self.tensors:  # keys can have dots, too
            name += "+"
        self.tensors[name] = stored
        return {KIND: "tensor", "name": name, **form}


class _Decoder(_Walk):
    def value(self, value: Tree) -> Any:
        match value:
            case None | bool() | int() | str():
                return value
            case float() if math.isfinite(value):
                return value
            case list() | dict() if len(self.keys) > DEEPEST:
                raise self.bad("nested too deeply")
            case list():
                return [self.inside(i, item) for i, item in enumerate(value)]
            case dict() if KIND not in value:
                return {key: self.inside(key, item) for key, item in value.items()}
            case {"$": "float", "value": str(word), **more} if word in NOT_FINITE and not more:
                return NOT_FINITE[word]
            case {"$": "tuple", "items": list(items), **more} if not more:
                return tuple(self.inside(i, item) for i, item in enumerate(items))
            case {"$": "dict", "items": list(items), **more} if not more:
                return self.mapping(items)
            case {"$": "tensor", "name": str(name), **form}:
                return self.tensor(name, form)
        raise self.bad("not of a known kind")

    def mapping(self, items: list[Tree]) -> dict[str | int, Any]:
        decoded: dict[str | int, Any] = {}
        for item in items:
            match item:
                case [str() | int() as key, value] if type(key) is not bool and key not in decoded:
                    decoded[key] = self.inside(key, value)
                case _:
                    raise self.bad("a dict with an item that has no key of its own")
        return decoded

    def tensor(self, name: str, form: dict[Any, Any]) -> Tensor:
        if name not in self.tensors:
            raise self.bad("a tensor that is not there, or that another place has")
        if form.keys() != {"dtype", "shape", "strides"}:
            raise self.bad("a tensor without a proper form")
        try:
            return from_storage(self.tensors.pop(name), **form)
        except BadCheckpoint as error:
            raise self.bad(str(error)) from None

    def bad(self, what: str) -> BadCheckpoint:
        return BadCheckpoint(f"{self.place()[:100]} is {what}")
