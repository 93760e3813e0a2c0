"""A reader for the few pickle operations that image datasets use; it runs no code.

It interprets the stream itself: the only globals it accepts are those that numpy's arrays use, and
it makes arrays of plain numbers over the bytes of the file. Every length is compared with the rest
of the file before anything is allocated.
"""

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
}
NUMBERS = ("u1", "i4", "i8", "f4", "f8")
_MARK = object()


class Refused(ValueError):
    """The stream is truncated, or asks for something that a data file does not contain."""


class _Name:
    """One of the accepted globals, before it is called."""

    def __init__(self, role: str) -> None:
        self.role = role


class _Dtype:
    """A dtype whose byte order is not known yet."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = ""


class _Array:
    """An array whose shape and bytes are not known yet."""

    def __init__(self) -> None:
        self.value: np.ndarray | None = None


def read_pickle(content: bytes) -> dict[str, Any]:
    """Return the dict in a pickle: text, integers, lists of them, and arrays.

    >>> import pickle
    >>> read_pickle(pickle.dumps({"labels": [1, 2]}, protocol=2))
    {'labels': [1, 2]}
    >>> read_pickle(pickle.dumps({"labels": print}))
    Traceback (most recent call last):
    classgrad.data.pickled.Refused: asks for 'builtins.print'
    """
    try:
        values = _Machine(content).run()
    except (IndexError, struct.error):
        raise Refused("ends too early or is not a pickle") from None
    if type(values) is not dict:
        raise Refused("holds no dict")
    return {
        key: value.value if isinstance(value, _Array) else value for key, value in values.items()
    }


class _Machine:
    """The stack machine of the pickle format, with harmless operations only."""

    def __init__(self, content: bytes) -> None:
        self.view = memoryview(content)
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.running = True
        self.operations: dict[int, Callable[[], None]] = {
            0x80: self.protocol,
            0x95: self.frame,
            ord("("): lambda: self.stack.append(_MARK),
            ord("}"): lambda: self.stack.append({}),
            ord("]"): lambda: self.stack.append([]),
            ord(")"): lambda: self.stack.append(()),
            ord("N"): lambda: self.stack.append(None),
            0x88: lambda: self.stack.append(True),
            0x89: lambda: self.stack.append(False),
            ord("K"): lambda: self.stack.append(self.number("<B", 1)),
            ord("M"): lambda: self.stack.append(self.number("<H", 2)),
            ord("J"): lambda: self.stack.append(self.number("<i", 4)),
            ord("U"): lambda: self.stack.append(bytes(self.take(self.number("<B", 1)))),
            ord("C"): lambda: self.stack.append(bytes(self.take(self.number("<B", 1)))),
            ord("T"): lambda: self.stack.append(self.take(self.number("<I", 4))),
            ord("B"): lambda: self.stack.append(self.take(self.number("<I", 4))),
            0x8E: lambda: self.stack.append(self.take(self.number("<Q", 8))),
            ord("X"): lambda: self.stack.append(self.text(self.number("<I", 4))),
            0x8C: lambda: self.stack.append(self.text(self.number("<B", 1))),
            ord("q"): lambda: self.memo.__setitem__(self.number("<B", 1), self.stack[-1]),
            ord("r"): lambda: self.memo.__setitem__(self.number("<I", 4), self.stack[-1]),
            0x94: lambda: self.memo.__setitem__(len(self.memo), self.stack[-1]),
            ord("h"): lambda: self.recall(self.number("<B", 1)),
            ord("j"): lambda: self.recall(self.number("<I", 4)),
            ord("a"): lambda: self.extend([self.stack.pop()]),
            ord("e"): lambda: self.extend(self.since_mark()),
            ord("s"): lambda: self.enter([self.stack.pop(-2), self.stack.pop()]),
            ord("u"): lambda: self.enter(self.since_mark()),
            0x85: lambda: self.tuple_of(1),
            0x86: lambda: self.tuple_of(2),
            0x87: lambda: self.tuple_of(3),
            ord("t"): lambda: self.stack.append(tuple(self.since_mark())),
            ord("c"): lambda: self.name(self.line(), self.line()),
            0x93: lambda: self.name(self.stack.pop(-2), self.stack.pop()),
            ord("R"): self.apply,
            ord("b"): self.build,
            ord("."): self.stop,
        }

    def run(self) -> object:
        """Execute the operations up to the end of the stream."""
        while self.running:
            code = self.view[self.at]
            operation = self.operations.get(code)
            if operation is None:
                raise Refused(f"operation {code:#04x} at byte {self.at:,} is not allowed")
            self.at += 1
            operation()
        if self.at != len(self.view):
            raise Refused(f"{len(self.view) - self.at:,} bytes follow its end")
        if len(self.stack) != 1:
            raise Refused("is not a single value")
        return self.stack[0]

    def take(self, length: int) -> memoryview:
        """Return the next `length` bytes."""
        end = self.at + length
        if end > len(self.view):
            raise Refused("ends too early")
        taken, self.at = self.view[self.at : end], end
        return taken

    def number(self, layout: str, length: int) -> int:
        """Return the integer in the next bytes."""
        return int(struct.unpack(layout, self.take(length))[0])

    def text(self, length: int) -> str:
        """Return the next bytes as text."""
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise Refused("holds text that is not UTF-8") from None

    def line(self) -> str:
        """Return the next bytes up to a newline as text."""
        head = bytes(self.view[self.at : self.at + 256])
        length = head.find(b"\n")
        if length < 0:
            raise Refused("holds a name that does not end")
        line = self.text(length)
        self.at += 1
        return line

    def since_mark(self) -> list[Any]:
        """Pop all values above the last mark, and the mark."""
        for position in range(len(self.stack) - 1, -1, -1):
            if self.stack[position] is _MARK:
                values = self.stack[position + 1 :]
                del self.stack[position:]
                return values
        raise Refused("ends a group that was not begun")

    def recall(self, number: int) -> None:
        """Push a memoised value."""
        if number not in self.memo:
            raise Refused(f"recalls value {number}, which was not stored")
        self.stack.append(self.memo[number])

    def extend(self, values: list[Any]) -> None:
        """Append values to the list below them."""
        if type(self.stack[-1]) is not list:
            raise Refused("appends values to something that is not a list")
        self.stack[-1].extend(values)

    def enter(self, values: list[Any]) -> None:
        """Add key and value pairs to the dict below them."""
        if type(self.stack[-1]) is not dict or len(values) % 2:
            raise Refused("adds pairs to something that is not a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            self.stack[-1][_word(key)] = value

    def tuple_of(self, count: int) -> None:
        """Pop `count` values and push them as a tuple."""
        if len(self.stack) < count:
            raise Refused("ends a group that was not begun")
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(values)

    def name(self, module: object, word: object) -> None:
        """Push an accepted global."""
        role = NAMES.get((_word(module), _word(word)))
        if role is None:
            raise Refused(f"asks for {f'{_word(module)}.{_word(word)}'[:80]!r}")
        self.stack.append(_Name(role))

    def apply(self) -> None:
        """Begin an array or a dtype."""
        arguments, name = self.stack.pop(), self.stack.pop()
        role = name.role if isinstance(name, _Name) else ""
        if role == "array" and type(arguments) is tuple and arguments[1:2] == ((0,),):
            self.stack.append(_Array())
        elif role == "dtype" and type(arguments) is tuple and len(arguments) == 3:
            if (code := _word(arguments[0])) not in NUMBERS:
                raise Refused(f"holds an array of {code[:20]!r}, not of plain numbers")
            self.stack.append(_Dtype(code))
        else:
            raise Refused("calls something other than an array")

    def build(self) -> None:
        """Complete an array or a dtype."""
        state, value = self.stack.pop(), self.stack[-1]
        if type(state) is not tuple:
            raise Refused("builds something other than an array")
        if isinstance(value, _Dtype) and state[0] == 3 and state[2:5] == (None, None, None):
            value.order = _word(state[1])
        elif isinstance(value, _Array) and len(state) == 5 and state[0] == 1:
            value.value = _array(*state[1:])
        else:
            raise Refused("builds something other than an array")

    def protocol(self) -> None:
        """Accept the protocols in which the releases and their repacked copies are written."""
        if self.number("<B", 1) not in (2, 3, 4) or self.at != 2:
            raise Refused("is not a pickle of protocol 2 to 4")

    def frame(self) -> None:
        """Check the length of a frame against the rest of the file."""
        if self.number("<Q", 8) > len(self.view) - self.at:
            raise Refused("ends too early")

    def stop(self) -> None:
        """End the stream."""
        self.running = False


def _word(value: object) -> str:
    """Return a string; Python 2 wrote it as bytes."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        return value
    raise Refused("has something else where a string belongs")


def _array(shape: object, dtype: object, fortran: object, raw: object) -> np.ndarray:
    """Return an array over the bytes of the file, without copying them."""
    if not (
        type(shape) is tuple
        and len(shape) <= 4
        and all(type(size) is int and size >= 0 for size in shape)
        and isinstance(dtype, _Dtype)
        and dtype.order in ("|", "<", ">")
        and isinstance(raw, bytes | memoryview)
    ):
        raise Refused("holds an array that is not of plain numbers")
    kind = np.dtype(dtype.order + dtype.code)
    if math.prod(shape) * kind.itemsize != len(raw):
        raise Refused(f"holds an array of {len(raw):,} bytes, which do not fill its shape {shape}")
    try:
        return np.frombuffer(raw, kind).reshape(shape, order="F" if fortran is True else "C")
    except ValueError:  # if one size is 0, the others can be larger than any array
        raise Refused(f"holds an array of the shape {shape}") from None
