import json
import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, load_file

from classgrad.checkpoints import BadCheckpoint
from classgrad.checkpoints.encoding import (
    DEEPEST,
    DTYPES,
    decode,
    encode,
    file_pieces,
    from_file,
    from_storage,
)
from classgrad.checkpoints.files import parse_json
from states import content, example, same


@st.composite
def tensors(draw):
    """Give tensors of any dtype with any bits, and layouts without gaps."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        raw = bytes(byte % 2 for byte in raw)
    if not size:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    sides = zip(tensor.shape, tensor.stride(), strict=True)  # steps along sides of 1 are free
    strides = [draw(st.integers(0, 9)) if size == 1 else stride for size, stride in sides]
    return tensor.as_strided(tensor.shape, strides)


keys = st.text(max_size=5) | st.integers()
states = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=5)
    | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "items", "name", "a"]), inner)
    ),
    max_leaves=12,
)


def through_bytes(state):
    """Return a state that went through the bytes of both files."""
    tree, tensors = encode(state)
    return decode(parse_json(json.dumps(tree).encode()), from_file(b"".join(file_pieces(tensors))))


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(states)
def test_every_state_comes_back_to_the_bit(state):
    assert same(through_bytes(state), state)


def test_an_example_comes_back_and_is_not_changed():
    state = example(7)
    assert same(through_bytes(state), example(7))
    assert same(state, example(7))


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_in_every_shape(name):
    for shape in ([], [0], [2, 0, 3], [1], [2, 3], [2, 1, 3], [2] * 16):
        raw = torch.arange(math.prod(shape) * DTYPES[name].itemsize, dtype=torch.uint8) % 2
        tensor = raw.view(DTYPES[name]).reshape(shape)
        assert same(through_bytes({"x": tensor}), {"x": tensor})


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 1, 3, 3), (4, 3, 1, 1), (1, 3, 2, 2)])
def test_channels_last_comes_back_even_where_sides_of_one_hide_it(shape):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(memory_format=torch.channels_last)
    back = through_bytes([tensor])[0]
    assert back.stride() == tensor.stride()
    assert back.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2],
        lambda x: x[1:, 1:],
        lambda x: x[:1].expand(5, 6),
        lambda x: x.t()[:2],
        lambda x: x[0, 0].expand(3),
    ],
)
def test_slices_come_back_with_their_values(view):
    tensor = view(torch.arange(24.0).reshape(4, 6))
    assert torch.equal(through_bytes([tensor])[0], tensor)


def test_a_conjugate_is_stored_as_its_values():
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(through_bytes([tensor.conj()])[0], torch.tensor([1 - 2j, 3 + 1j]))
    assert torch.equal(through_bytes([tensor.conj().imag])[0], torch.tensor([-2.0, 1.0]))
    assert torch.equal(through_bytes([tensor[:1].conj().imag])[0], torch.tensor([-2.0]))


def test_memory_of_decoded_tensors_is_aligned_and_their_own():
    state = {"odd": torch.ones(3, dtype=torch.bool), **{str(i): torch.ones(5) for i in range(9)}}
    back = through_bytes(state)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in back.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in back.values()}) == 10


def test_one_tensor_in_two_places_is_stored_twice():
    tensor = torch.arange(6.0)
    back = through_bytes({"a": tensor, "b": tensor, "part": tensor[2:4]})
    assert torch.equal(back["a"], tensor)
    assert torch.equal(back["part"], tensor[2:4])
    back["a"].zero_()
    assert torch.equal(back["b"], tensor)


def test_subclasses_come_back_as_the_plain_kind():
    state = OrderedDict(weight=torch.nn.Parameter(torch.ones(2)), size=torch.Size([2, 3]))
    assert same(through_bytes(state), {"weight": torch.ones(2), "size": (2, 3)})


def test_tensors_are_not_copied_to_be_encoded():
    state = [torch.ones(3, 4), torch.ones(3, 4).t(), torch.ones(2, dtype=torch.complex128)]
    _, tensors = encode(state)
    assert [t.data_ptr() for t in tensors.values()] == [t.data_ptr() for t in state]


def test_any_reader_of_safetensors_reads_the_file(tmp_path):
    flat = {"0": torch.ones(3, dtype=torch.bool), "1": torch.arange(6.0).reshape(2, 3)}
    flat |= {"2": torch.tensor(2, dtype=torch.int64), "3": torch.empty(0, 2)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"".join(file_pieces(flat)))
    for result in (load(path.read_bytes()), load_file(path)):
        assert result.keys() == flat.keys()
        assert all(torch.equal(result[name], flat[name]) for name in flat)
    assert load(b"".join(file_pieces({}))) == {}


def test_elements_are_aligned_in_the_file():
    start, *_ = file_pieces({"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(2)})
    assert len(start) % 8 == 0
    header = json.loads(start[8:])
    assert (header["b"]["data_offsets"], header["a"]["data_offsets"]) == ([0, 8], [8, 11])


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, {2}]}, r"state\['a'\]\[1\], a set"),
        ({"a": {1.5: 2}}, r"state\['a'\], which has the key 1.5"),
        ({True: 2}, "the key True"),
        ({3: object()}, r"state\[3\], a object"),
        ({"a": torch.eye(2).to_sparse()}, r"state\['a'\], a tensor of float32, torch.sparse_coo"),
        ({"a": torch.empty(2, device="meta")}, "on meta"),
    ],
)
def test_what_cannot_be_stored_is_named(state, place):
    with pytest.raises(TypeError, match=place):
        encode(state)


def nested(levels, wrap):
    state = wrap([])
    for _ in range(levels):
        state = wrap([state])
    return state


@pytest.mark.parametrize("wrap", [list, tuple, lambda items: dict(enumerate(items))])
def test_what_is_nested_as_deeply_as_allowed_comes_back(wrap):
    assert same(through_bytes(nested(DEEPEST - 1, wrap)), nested(DEEPEST - 1, wrap))
    with pytest.raises(TypeError, match="nested too deeply"):
        encode(nested(DEEPEST, wrap))


def test_a_state_that_contains_itself_is_refused():
    state = []
    state.append(state)
    with pytest.raises(TypeError, match="contains itself"):
        encode(state)


GOOD = {"$": "tensor", "name": "0", "dtype": "float32", "shape": [2, 3], "strides": [3, 1]}


def changed(**parts):
    return {**GOOD, **parts}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"$": "code"}, "not of a known kind"),
        ({"$": None}, "not of a known kind"),
        ({"$": ["tuple"], "items": []}, "not of a known kind"),
        ({"$": "tuple"}, "not of a known kind"),
        ({"$": "tuple", "items": "ab"}, "not of a known kind"),
        ({"$": "tuple", "items": [], "more": 1}, "not of a known kind"),
        ({"$": "float", "value": "1.5"}, "not of a known kind"),
        ({"$": "float", "value": 1.5}, "not of a known kind"),
        ({"a": [math.inf]}, r"state\['a'\]\[0\] is not of a known kind"),
        ({"$": "dict", "items": {"a": 1}}, "not of a known kind"),
        ({"$": "dict", "items": [[1]]}, "no key of its own"),
        ({"$": "dict", "items": [[1, 2], [1, 3]]}, "no key of its own"),
        ({"$": "dict", "items": [[True, 2]]}, "no key of its own"),
        ({"$": "dict", "items": [[[], 2]]}, "no key of its own"),
        ({"$": "dict", "items": ["ab"]}, "no key of its own"),
        ([GOOD, GOOD], "another place has"),
        (changed(name="1"), "not there"),
        (changed(name=0), "not of a known kind"),
        (changed(more=0), "without a proper form"),
        ({"$": "tensor", "name": "0"}, "without a proper form"),
        (changed(dtype="object"), "unknown dtype"),
        (changed(dtype=["float32"]), "unknown dtype"),
        (changed(dtype="int32"), "do not fit"),
        (changed(dtype="complex64", shape=[3], strides=[1]), "do not fit"),
        (changed(shape=[2, 4]), "do not fit"),
        (changed(shape=[]), "proper shape"),
        (changed(shape=[-2, -3]), "proper shape"),
        (changed(shape=[2, True, 3], strides=[3, 1, 1]), "proper shape"),
        (changed(shape="23"), "proper shape"),
        (changed(shape=[2**80, 3]), "proper shape"),
        (changed(strides=[1, 3]), "do not fit"),
        (changed(strides=[0, 1]), "do not fit"),
        (changed(strides=[10**9, 1]), "do not fit"),
        ({}, "1 tensors belong to nothing"),
    ],
)
def test_a_wrong_tree_is_refused_in_one_line(tree, message):
    with pytest.raises(BadCheckpoint, match=message) as caught:
        decode(tree, {"0": torch.ones(2, 3)})
    assert "\n" not in str(caught.value)


def test_an_impossible_shape_without_elements_is_refused():
    with pytest.raises(BadCheckpoint, match="proper shape"):
        from_storage(torch.empty(0), "float32", [0, 2**62, 2**62], [1, 1, 1])


def test_steps_along_sides_of_one_do_not_matter_but_are_kept():
    assert from_storage(torch.ones(2), "float32", [1, 2], [2**61, 1]).stride() == (2**61, 1)


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", "[1e5, Infinity]", '{"a": 1, "a": 2}', "9" * 5000, "[" * 10**5, "\x00"],
)
def test_text_that_is_not_strict_json_is_refused(text):
    with pytest.raises(BadCheckpoint, match="not JSON"):
        parse_json(text.encode())


def test_a_tree_that_is_nested_too_deeply_is_refused():
    with pytest.raises(BadCheckpoint, match="nested too deeply"):
        decode(nested(300, list), {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["0", "nan", "bool"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.fixed_dictionaries(
            {"$": st.sampled_from(["tensor", "tuple", "dict", "float", "x"])},
            optional=dict.fromkeys(("items", "value", "name", "dtype", "shape", "strides"), inner),
        )
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=300)
@given(json_values)
def test_any_tree_is_decoded_or_refused(tree):
    message = ""
    try:
        decode(tree, {"0": torch.ones(1, dtype=torch.bool)})
    except BadCheckpoint as error:
        message = str(error)
    assert "\n" not in message


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_bytes_are_read_as_tensors_or_refused(data):
    whole = b"".join(file_pieces(encode(example())[1]))
    at = data.draw(st.integers(0, len(whole) - 1))
    new = data.draw(st.binary(max_size=4))
    message = ""
    try:
        for tensor in from_file(whole[:at] + new + whole[at + len(new) :]).values():
            content(tensor)
    except BadCheckpoint as error:
        message = str(error)
    assert "\n" not in message


def test_what_a_reader_says_of_a_bad_header_is_one_plain_line():
    header = '{"0":{"dtype":"I\ufeff","shape":[1],"data_offsets":[0,4]}}'.encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    with pytest.raises(BadCheckpoint, match="not a safetensors file") as error:
        from_file(content)
    assert str(error.value).isprintable()
