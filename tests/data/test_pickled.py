import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings

from classgrad.data.pickled import Refused, read_pickle
from data.datafiles import OldPickle, cifar10_batch, mutated, one_line, pixels

TABLE = {"data": pixels(3, 5, 7), "labels": [1, 2, 300], "names": ["a", "b"]}
OLD = OldPickle().dump(TABLE)


def test_reads_what_python_2_wrote_as_pickle_does():
    held = read_pickle(OLD)
    reference = pickle.loads(OLD, encoding="latin1")
    assert held["labels"] == reference["labels"] == TABLE["labels"]
    assert [name.decode() for name in held["names"]] == reference["names"]
    assert np.array_equal(held["data"], reference["data"])
    assert np.array_equal(held["data"], TABLE["data"])


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("dtype", ["u1", "<i4", "<i8", "<f4", "<f8", ">f8"])
def test_reads_a_repacked_copy(protocol, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    held = read_pickle(pickle.dumps({"data": array, "names": ["ä"]}, protocol))
    assert np.array_equal(held["data"], array)
    assert held["names"] == ["ä"]


def test_reads_columns_first():
    array = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    assert np.array_equal(read_pickle(pickle.dumps({"a": array}, 4))["a"], array)


class Call:
    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


def hostile(path):
    code = f"open({str(path)!r}, 'w')"
    return {
        "system": Call(os.system, f"touch {path}"),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "open": Call(open, str(path), "w"),
        "getattr": Call(getattr, [], "append"),
        "numpy.load": Call(np.load, str(path)),
        "fromfile": Call(np.fromfile, str(path)),
        "codecs": Call(__import__("codecs").encode, "x", "rot13"),
        "objects": np.array([Call(os.system, f"touch {path}"), None], dtype=object),
        "record": np.zeros(2, dtype=[("a", "u1")]),
        "text": np.array(["a"]),
        "set": {1, 2},
        "float": 1.5,
        "huge": 2**70,
    }


@pytest.mark.parametrize("name", list(hostile("x")))
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_refuses_everything_else(tmp_path, name, protocol):
    path = tmp_path / "touched"
    content = pickle.dumps({"data": hostile(path)[name]}, protocol)
    with pytest.raises(Refused):
        read_pickle(content)
    assert not path.exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02cposix\nsystem\nU\x04true\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
        b"\x80\x02(cos\nsystem\nU\x04trueo.",
        b"\x80\x02ccopyreg\n_reconstructor\n).",
        b"\x80\x02cnumpy\ndtype\nU\x01OK\x00K\x01\x87R.",
        b"\x80\x02cnumpy\nndarray\nK\x01\x85R.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02P0\n.",
        b"\x80\x05}.",
        b"\x80\x02}}.",
        b"\x80\x02}.rest",
        b"\x80\x02N.",
        b"\x80\x02}(]N\x75.",
        b"\x80\x02h\x07.",
        b"\x80\x02t.",
        b"\x80\x02R.",
        b"\x80\x02b.",
        b"c" + b"a" * 999,
        b".",
        b"",
    ],
)
def test_refuses_streams_made_by_hand(stream):
    with pytest.raises(Refused) as caught:
        read_pickle(stream)
    one_line(caught.value)


@pytest.mark.parametrize(
    "stream",
    [
        b"\x80\x02}r\xff\xff\xff\xff.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x04B" + struct.pack("<I", 2**32 - 1) + b"x.",
        b"\x80\x04X" + struct.pack("<I", 2**32 - 1) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"}.",
        b"\x80\x02" + b"]q\x01" + b"(h\x01h\x01e" * 1000 + b".",
    ],
)
def test_takes_no_more_memory_than_the_file(stream):
    tracemalloc.start()
    try:
        read_pickle(stream)
    except Refused:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2**20


def test_refuses_an_array_that_does_not_fill_its_shape():
    whole = OldPickle().dump({"data": np.zeros((4, 8), np.uint8)})
    with pytest.raises(Refused, match="do not fill its shape"):
        read_pickle(whole.replace(b"M\x08\x00", b"M\x09\x00"))


def test_refuses_a_shape_that_no_array_can_have():
    """Nothing is missing, since one of the sizes is 0."""
    large = b"J" + struct.pack("<i", 2**31 - 1)
    whole = OldPickle().dump({"data": np.zeros((0, 8), np.uint8)})
    with pytest.raises(Refused, match="2147483647"):
        read_pickle(whole.replace(b"M\x00\x00M\x08\x00\x86", b"(M\x00\x00" + large * 3 + b"t"))


def test_every_cut_is_refused():
    for length in range(len(OLD)):
        with pytest.raises(Refused):
            read_pickle(OLD[:length])


@settings(max_examples=300, deadline=None)
@given(mutated(cifar10_batch(0, "training batch", 2)))
def test_mutations_are_read_or_refused(content):
    try:
        held = read_pickle(content)
    except Refused as error:
        one_line(error)
    else:
        assert type(held) is dict
