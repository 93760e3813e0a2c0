"""Hypothesis strategies for damaged files, whatever their format."""

import re
import struct
from collections.abc import Callable

from hypothesis import strategies as st

EXTREME = (0, 1, *(2**bits + more for bits in (7, 8, 15, 16, 31, 32, 63, 64) for more in (-1, 0)))
LAYOUTS = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")
# Numbers, words and depths that text formats have trouble with.
WORDS = (
    *(b"-1", b"0", b"-0.0", b"9223372036854775808", b"1e999", b"9" * 400, b"9" * 5000),
    *(b"0x" + b"f" * 5000, b"NaN", b"nan", b"Infinity", b"inf", b"null", b"true"),
    *(b"1979-05-27T07:32:00Z", b'""', b'"\\ud800"', b'"\\n[/b]\\u001b"', b"\xef\xbb\xbf"),
    *(b"[]", b"{}", b"[", b"]", b"{", b"}", b",", b"=", b".", b"\n", b"\xff"),
    *(b"[" * depth + b"]" * depth for depth in (100, 300, 2000)),
    *(b"[" * 2000, b'{"a":' * 2000, b"{a=" * 2000),
)
NUMBER = re.compile(rb"-?\d+(\.\d+)?")
# The structure of most formats is in the first bytes, and of some in the last.
EDGE = 400

Edit = Callable[[st.DrawFn, bytearray, int], None]


def mutated(raw: bytes) -> st.SearchStrategy[bytes]:
    """Return `raw` after one to four of the edits below."""

    @st.composite
    def after_edits(draw: st.DrawFn) -> bytes:
        content = bytearray(raw)
        for _ in range(draw(st.integers(1, 4))):
            edit = draw(st.sampled_from(EDITS))
            edit(draw, content, _place(draw, len(content)))
        return bytes(content)

    return after_edits()


def _place(draw: st.DrawFn, length: int) -> int:
    near = draw(st.integers(0, min(length, EDGE)))
    where = draw(st.sampled_from(("begin", "anywhere", "end")))
    if where == "anywhere":
        return draw(st.integers(0, length))
    return near if where == "begin" else length - near


def _flip(draw: st.DrawFn, content: bytearray, at: int) -> None:
    if at < len(content):
        content[at] ^= 1 << draw(st.integers(0, 7))


def _replace(draw: st.DrawFn, content: bytearray, at: int) -> None:
    new = draw(st.binary(min_size=1, max_size=9))
    content[at : at + len(new)] = new


def _insert(draw: st.DrawFn, content: bytearray, at: int) -> None:
    content[at:at] = draw(st.binary(min_size=1, max_size=9))


def _remove(draw: st.DrawFn, content: bytearray, at: int) -> None:
    del content[at : at + draw(st.integers(1, 64))]


def _repeat(draw: st.DrawFn, content: bytearray, at: int) -> None:
    content[at:at] = content[at : at + draw(st.integers(1, 64))]


def _cut(draw: st.DrawFn, content: bytearray, at: int) -> None:
    del content[at:]


def _number(draw: st.DrawFn, content: bytearray, at: int) -> None:
    """Write an extreme number over the bytes, in one of the usual layouts."""
    layout = draw(st.sampled_from(LAYOUTS))
    size = struct.calcsize(layout)
    value = draw(st.sampled_from(EXTREME)) % 256**size
    content[at : at + size] = struct.pack(layout, value)


def _written_number(draw: st.DrawFn, content: bytearray, at: int) -> None:
    """Put a word in the place of the next number that is written in digits."""
    result = NUMBER.search(content, at)
    if result:
        content[result.start() : result.end()] = draw(st.sampled_from(WORDS))


def _word(draw: st.DrawFn, content: bytearray, at: int) -> None:
    content[at:at] = draw(st.sampled_from(WORDS))


EDITS: tuple[Edit, ...] = (
    _flip, _replace, _insert, _remove, _repeat, _cut, _number, _written_number, _word,
)  # fmt: skip
