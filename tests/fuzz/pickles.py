"""Pickles as no program writes them: operations in any order, arrays of any shape, calls."""

import math
import struct

from hypothesis import strategies as st

SIZES = st.sampled_from((0, 1, 2, 3, 10, 32, 100, 3072, 65535, 2**31 - 1, -1, -(2**31)))
SHAPES = ((1, 3072), (2, 3072), (1, 1, 32, 32), (0, 3072), (0, *(2**31 - 1,) * 3), (3,), (1,) * 4)
WORDS = (
    *(b"data", b"labels", b"fine_labels", b"coarse_labels", b"features", b"batch_label"),
    *(b"label_names", b"fine_label_names", b"coarse_label_names"),
    *(b"testing", b"u1", b"f8", b"O", b"", b"\xff"),
)
WORD = st.sampled_from(WORDS)
NAMES = (
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy._core.multiarray\n_reconstruct\n",
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"cnumpy\nfromfile\n",
    b"cos\nsystem\n",
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"ccopyreg\n_reconstructor\n",
    b"\x8c\x05numpy\x8c\x05dtype\x93",
    b"\x8c\x02os\x8c\x06system\x93",
)
SINGLE = tuple(
    bytes([code]) for code in b"(})]Naeust\x85\x86\x87\x88\x89\x93\x94Rb.0120FGILSVPQiolcd"
)
NUMBERS = b"J\xff\xff\xff\xff" * 2 + b"K\x00"
DTYPE = b"cnumpy\ndtype\nU\x02%sK\x00K\x01\x87R(K\x03U\x01%sNNN" + NUMBERS + b"tb"


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def word(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


@st.composite
def arrays(draw: st.DrawFn) -> bytes:
    """Return the operations that numpy writes for an array, with shape and bytes at odds."""
    shape = draw(st.sampled_from(SHAPES) | st.lists(SIZES, max_size=5))
    code = draw(st.sampled_from((b"u1", b"i4", b"i8", b"f4", b"f8", b"O8", b"V9", b"U1")))
    order = draw(st.sampled_from((b"|", b"<", b">", b"=", b"x")))
    length = draw(st.sampled_from((math.prod(shape), 0, 1, 3072)) | st.integers(0, 40))
    length = length if 0 <= length <= 6144 else 0
    begin = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01("
    sizes = b"".join(map(number, shape)) + b"t"
    fortran = draw(st.sampled_from((b"\x88", b"\x89")))
    return begin + sizes + DTYPE % (code, order) + fortran + _raw(draw, length) + b"tb"


def _raw(draw: st.DrawFn, length: int) -> bytes:
    announced = draw(st.sampled_from((length, length, length, length + 1, 2**32 - 1)))
    filler = draw(st.sampled_from((b"\0", b"\x01", b"\xff", b"\x7f")))
    return b"B" + struct.pack("<I", announced) + filler * length


VALUES = st.one_of(
    arrays(),
    SIZES.map(number),
    WORD.map(word),
    st.lists(st.integers(-1, 101), max_size=4).map(
        lambda n: b"](" + b"".join(map(number, n)) + b"e"
    ),
    st.sampled_from((10, 20, 100)).map(lambda n: b"](" + word(b"a") * n + b"e"),
    st.sampled_from(NAMES).map(lambda name: name + b"U\x04true\x85R"),
    st.sampled_from((b"N", b"}", b"]", b"]q\x01h\x01a", b"B\x03\0\0\0abc")),
)
TABLES = st.lists(st.tuples(WORD.map(word), VALUES), max_size=4).map(
    lambda pairs: b"\x80\x02}(" + b"".join(key + value for key, value in pairs) + b"u."
)
OPERATIONS = st.one_of(
    st.sampled_from(SINGLE),
    st.sampled_from(NAMES),
    VALUES,
    st.integers(0, 255).map(lambda n: b"q" + bytes([n % 4])),
    st.integers(0, 255).map(lambda n: b"h" + bytes([n % 4])),
    st.binary(max_size=3),
)
PROGRAMS = st.lists(OPERATIONS, max_size=25).map(lambda parts: b"\x80\x02" + b"".join(parts) + b".")
PICKLES = TABLES | PROGRAMS
