"""Files of binary formats that are sound on the outside and wrong further in."""

import gzip
import struct
import tarfile
import zlib

from hypothesis import strategies as st

from fuzz.mutations import EXTREME, mutated

SIGNATURE = b"\x89PNG\r\n\x1a\n"
WILD = st.sampled_from(EXTREME).map(lambda value: value % 2**32) | st.integers(0, 40)


def _often(raw: bytes) -> st.SearchStrategy[bytes]:
    """Return `raw` as it is, or damaged."""
    return st.builds(lambda: raw) | mutated(raw)


def zipped(raw: bytes) -> st.SearchStrategy[bytes]:
    """Return what is damaged before it is packed, so that the checksum of the packing is right."""
    return mutated(raw).map(lambda content: gzip.compress(content, 1))


@st.composite
def idx_files(draw: st.DrawFn, packed: bool) -> bytes:
    """Return idx files whose dimensions and length do not agree."""
    magic = draw(st.sampled_from((0x0801, 0x0803, 0x0804, 0x0D03)))
    sizes = draw(st.lists(WILD | st.just(28), max_size=5))
    length = draw(st.sampled_from((0, 1, 784, 1568, 2**20)))
    content = struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + bytes(length)
    return gzip.compress(content, 1) if packed else content


@st.composite
def elements(draw: st.DrawFn, content: bytes, kinds: tuple[int, ...]) -> bytes:
    """Return an element of a MATLAB file, seldom with another type or length than it has."""
    kind = draw(st.sampled_from((*kinds * 9, 1, 9, 14, 15)))
    length = draw(st.sampled_from((len(content),) * 9 + (0, 255, 2**31, 2**32 - 1)))
    if draw(st.integers(0, 9)) == 0:
        return struct.pack("<HH", kind, length % 8) + content[:4].ljust(4, b"\0")
    return struct.pack("<II", kind, length) + content + bytes(-len(content) % 8)


@st.composite
def variables(draw: st.DrawFn) -> bytes:
    """Return an X or y of a MATLAB file with sizes at odds, packed once, twice or not at all."""
    flags = struct.pack("<II", draw(st.sampled_from((9, 9, 6, 1, 15, 0x809))), 0)
    shapes = ((32, 32, 3, 1), (1, 1), (0, 1), (32, 32, 3, 2**31 - 1), (2**31 - 1,) * 4, (-1, -1))
    shape = draw(st.sampled_from(shapes) | st.lists(st.integers(-1, 4), max_size=6).map(tuple))
    name = draw(st.sampled_from((b"X", b"y", b"y", b"z", b"")))
    length = draw(st.sampled_from((0, 1, 8, 240, 3072)))
    body = (
        draw(elements(flags, (6,)))
        + draw(elements(struct.pack(f"<{len(shape)}i", *shape), (5,)))
        + draw(elements(name, (1,)))
        + draw(elements(b"\x01" * length, (2, 9)))
    )
    whole = draw(elements(body, (14,)))
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        # A megabyte of zeros behind takes a kilobyte when packed.
        bomb = bytes(draw(st.sampled_from((0, 0, 0, 1, 300, 2**20))))
        packed = zlib.compress(whole + bomb, 1)
        whole = struct.pack("<II", 15, len(packed)) + packed
    return whole


def mat_files(header: bytes) -> st.SearchStrategy[bytes]:
    """Return MATLAB files with one to three such variables."""
    return st.lists(variables(), min_size=1, max_size=3).map(lambda parts: header + b"".join(parts))


def chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


@st.composite
def png_files(draw: st.DrawFn, size: int) -> bytes:
    """Return PNG files with right checksums: wild headers, rows of other lengths, odd chunks."""
    edge = st.sampled_from((size,) * 8 + (0, 1, 2, 4000, 30_000, 2**31 - 1))
    small = st.integers(0, 8)
    usual = st.just(0) | small
    depth = draw(st.sampled_from((8, 8, 1, 2, 4, 16)) | small)
    fields = (draw(edge), draw(edge), depth, *(draw(usual) for _ in range(4)))
    rows = bytes([draw(small)]) * draw(st.sampled_from((size * (size + 1), size * size, 0, 2**20)))
    extra = draw(st.sampled_from((b"PLTE", b"tRNS", b"eXIf", b"zTXt", b"iCCP", b"acTL", b"gAMA")))
    parts = [
        chunk(b"IHDR", struct.pack(">IIBBBBB", *fields)),
        chunk(extra, draw(st.binary(max_size=12))),
        chunk(b"IDAT", draw(_often(zlib.compress(rows)))),
        chunk(b"IEND", b""),
    ]
    if draw(st.integers(0, 5)) == 0:
        parts = draw(st.permutations(parts))
    return SIGNATURE + b"".join(parts)


def archives(names: tuple[str, ...], content: bytes) -> st.SearchStrategy[bytes]:
    """Return packed tar archives with members of any type, size and name."""
    bodies = _often(content)
    headers = members((*names, "../outside", "/classgrad-outside", "a\nb"), len(content))
    parts = st.tuples(headers, bodies).map(b"".join)
    return st.lists(parts.map(lambda part: part + bytes(-len(part) % 512)), max_size=4).map(
        lambda result: gzip.compress(b"".join(result) + bytes(1024), 1)
    )


@st.composite
def members(draw: st.DrawFn, names: tuple[str, ...], size: int) -> bytes:
    """Return the header of a member, with a right checksum and otherwise anything in it."""
    member = tarfile.TarInfo(draw(st.sampled_from(names)))
    member.type = draw(st.sampled_from([b"0"] * 9 + [bytes([code]) for code in b"1234567SLKxg"]))
    member.linkname = draw(st.sampled_from(names))
    member.size = draw(st.sampled_from((size, size, 0, 1, 2**32, 2**40)))
    if draw(st.booleans()):
        return member.tobuf(tarfile.GNU_FORMAT)
    key = draw(st.sampled_from(("size", "path", "mtime", "hdrcharset", "GNU.sparse.major")))
    member.pax_headers = {key: draw(st.sampled_from(("-1", "9" * 30, "x", "../outside", "\0")))}
    return member.tobuf(tarfile.PAX_FORMAT)
