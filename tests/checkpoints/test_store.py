"""Checkpoints survive what can happen to a process and to its files."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from classgrad import UserError, __version__
from classgrad.checkpoints import BadCheckpoint, Store, files, schema
from classgrad.checkpoints.manifest import Manifest, parse_manifest
from states import example, same

DATA = Path(__file__).parent / "data"
FILES = ["manifest.json", "state.json", "tensors.safetensors"]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run" / "checkpoints")


@pytest.fixture(scope="module")
def saved_twice(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for counter in (1, 2):
        Store(folder).save(example(counter))
    return folder


@pytest.fixture
def two(saved_twice, tmp_path):
    """Give a folder with two checkpoints."""
    return Path(shutil.copytree(saved_twice, tmp_path / "checkpoints"))


def names(folder):
    return sorted(os.listdir(folder))


def test_what_was_saved_last_is_loaded(store):
    assert store.load() is None
    for counter in range(1, 5):
        store.save(example(counter))
        loaded = Store(store.folder).load()
        assert same(loaded.state, example(counter))
        assert (loaded.counter, loaded.code, loaded.warnings) == (counter, __version__, ())


def test_the_two_last_are_kept(store):
    kept = []
    for counter in range(1, 5):
        store.save(example(counter))
        kept.append(names(store.folder))
    assert kept == [["000001"], ["000001", "000002"], ["000002", "000003"], ["000003", "000004"]]
    assert names(store.folder / "000004") == FILES


def test_saving_does_not_change_the_state(store):
    state = example(3)
    weight = state["net"]["weight"]
    store.save(state)
    assert same(state, example(3))
    assert state["net"]["weight"] is weight


def test_the_files_are_what_they_are_said_to_be(two):
    folder = two / "000002"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["schema"], manifest["code"], manifest["counter"]) == (1, __version__, 2)
    for name in FILES[1:]:
        assert manifest["files"][name]["size"] == (folder / name).stat().st_size
    assert json.loads((folder / "state.json").read_text())["step"] == 2
    assert len(load_file(folder / "tensors.safetensors")) == 6


def test_counters_go_on_beyond_six_digits(store):
    store.save(example())
    shutil.rmtree(store.folder)
    files.sync(store.folder.parent)
    store.folder.mkdir()
    files.write(store.folder / "999999", 999999, example(1))
    store.save(example(2))
    store.save(example(3))
    assert names(store.folder) == ["1000000", "1000001"]
    assert same(Store(store.folder).load().state, example(3))


# Order of what reaches the disk


def test_everything_is_on_disk_before_it_counts_and_before_anything_is_removed(two, monkeypatch):
    done = []

    def note(module, name):
        real = getattr(module, name)

        def noted(first, *rest, **named):
            what = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            if name != "rmtree" or Path(what).exists():
                done.append((name, os.path.relpath(what, two)))
            return real(first, *rest, **named)

        monkeypatch.setattr(module, name, noted)

    for module, name in ((os, "fsync"), (os, "rename"), (shutil, "rmtree")):
        note(module, name)
    Store(two).save(example(3))
    assert done == [
        ("fsync", ".part-000003/state.json"),
        ("fsync", ".part-000003/tensors.safetensors"),
        ("fsync", ".part-000003/manifest.json"),
        ("fsync", ".part-000003"),
        ("rename", ".part-000003"),
        ("fsync", "."),
        ("rename", "000001"),
        ("rmtree", ".part-000001"),
    ]


# Damage


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def loads_the_one_before(folder, *reasons):
    loaded = Store(folder).load()
    assert same(loaded.state, example(1))
    assert loaded.counter == 1
    [warning] = loaded.warnings
    assert "\n" not in warning
    assert str(folder / "000002") in warning
    for reason in reasons:
        assert reason in warning


def header_length(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(FILES), st.data())
def test_any_flipped_bit_is_found(saved_twice, name, data):
    path = saved_twice / "000002" / name
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    flip(path, at, data.draw(st.integers(0, 7)))
    try:
        loads_the_one_before(saved_twice, name)
    finally:
        path.write_bytes(before)


def test_every_byte_of_the_manifest_matters(two):
    path = two / "000002" / "manifest.json"
    data = path.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[at] ^= 1 << bit
            with pytest.raises(BadCheckpoint):
                parse_manifest(bytes(wrong))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("manifest.json", lambda path: path.read_bytes().index(b'"schema": 1') + 10),
        ("state.json", lambda path: path.read_bytes().index(b"permuted")),
        ("tensors.safetensors", lambda path: 3),
        ("tensors.safetensors", lambda path: 20),
        ("tensors.safetensors", header_length),
        ("tensors.safetensors", lambda path: path.stat().st_size - 1),
    ],
)
def test_a_bit_that_still_makes_sense_is_found(two, name, place):
    path = two / "000002" / name
    flip(path, place(path), 1)
    loads_the_one_before(two, f"{name}: its checksum is wrong")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0, 0.5, -1])
def test_a_file_that_was_cut_is_found(two, name, share):
    path = two / "000002" / name
    size = path.stat().st_size
    os.truncate(path, size - 1 if share < 0 else int(size * share))
    loads_the_one_before(two, name, "not JSON" if name == FILES[0] else f"instead of {size}")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_found(two, name):
    (two / "000002" / name).unlink()
    loads_the_one_before(two, f"{name}: missing")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_the_place_of_a_file_is_found(two, name):
    (two / "000002" / name).unlink()
    (two / "000002" / name).mkdir()
    loads_the_one_before(two, f"{name}: missing")


@pytest.mark.parametrize("name", FILES)
def test_garbage_after_the_end_of_a_file_is_found(two, name):
    with open(two / "000002" / name, "ab") as file:
        file.write(b"garbage")
    loads_the_one_before(two, name)


@pytest.mark.parametrize("content", [b"\xff\x00", b"[]", b"3", b'"a"', b"{}", b" " * 100_000])
def test_a_manifest_that_is_none_is_found(two, content):
    (two / "000002" / "manifest.json").write_bytes(content)
    loads_the_one_before(two, "manifest.json: ")


@pytest.mark.parametrize(
    "parts",
    [
        {"schema": 0},
        {"schema": "1"},
        {"counter": None},
        {"code": 3},
        {"files": []},
        {"files": {}},
        {"files": {"state.json": {"size": "1"}}},
        {"counter": 3},
    ],
)
def test_a_manifest_that_says_something_impossible_is_found(two, parts, monkeypatch):
    path = two / "000002" / "manifest.json"
    content = {"schema": 1, "code": "0", "counter": 2, "files": {}, **parts}
    monkeypatch.setattr("classgrad.checkpoints.manifest.asdict", lambda manifest: content)
    path.write_bytes(Manifest(1, "0", 2, {}).to_json())
    loads_the_one_before(two)


def test_a_state_that_is_no_dict_is_found(two):
    shutil.rmtree(two / "000002")
    files.write(two / "000002", 2, [1])
    loads_the_one_before(two, "state.json: the state is not a dict")


def test_a_file_in_the_place_of_a_checkpoint_is_found(two):
    shutil.rmtree(two / "000002")
    (two / "000002").write_text("x")
    loads_the_one_before(two, "manifest.json: missing")


def test_a_checkpoint_under_a_wrong_number_is_found(two):
    os.rename(two / "000002", two / "000007")
    loaded = Store(two).load()
    assert loaded.counter == 1
    assert "it belongs to checkpoint 2" in loaded.warnings[0]


def test_a_disk_that_fails_is_damage_but_a_file_that_may_not_be_read_is_not(two, monkeypatch):
    def fail(code):
        def opened(path, *rest):
            if str(path) == str(two / "000002" / "state.json"):
                raise OSError(code, os.strerror(code), str(path))
            return open(path, *rest)

        monkeypatch.setattr(files, "open", opened, raising=False)

    fail(errno.EIO)
    loads_the_one_before(two, "state.json: Input/output error")
    fail(errno.EACCES)
    with pytest.raises(UserError, match="000002' cannot be read: Permission denied"):
        Store(two).load()


def test_all_damaged_is_an_error_that_names_each(two):
    flip(two / "000001" / "state.json", 5)
    (two / "000002" / "tensors.safetensors").unlink()
    with pytest.raises(UserError, match="restore the folder") as caught:
        Store(two).load()
    message = str(caught.value)
    assert "\n" not in message
    assert "000002' is damaged: tensors.safetensors: missing" in message
    assert "000001' is damaged: state.json: its checksum is wrong" in message


def test_after_damage_the_one_that_was_loaded_is_kept_and_the_damaged_one_is_not(two):
    (two / "000002" / "state.json").unlink()
    store = Store(two)
    assert store.load().counter == 1
    store.save(example(3))
    assert names(two) == ["000001", "000003"]
    store.save(example(4))
    assert names(two) == ["000003", "000004"]


def test_what_is_not_a_checkpoint_is_left_alone(two):
    for name in ("notes.txt", "12", "0000003", "٠٠٠٠٠٩"):
        (two / name).write_text("mine")
    (two / "000002" / "seen.txt").write_text("mine")
    store = Store(two)
    assert store.load().counter == 2
    store.save(example(3))
    assert {"notes.txt", "12", "0000003", "٠٠٠٠٠٩", "000002", "000003"} == set(names(two))


# A process or a computer that stopped


@pytest.mark.parametrize("there", [[], FILES[:1], FILES[1:2], FILES[1:], FILES])
def test_what_was_never_renamed_does_not_count_and_is_removed_by_the_next_save(two, there):
    part = two / ".part-000003"
    part.mkdir()
    for name in there:
        shutil.copy(two / "000002" / name, part)
    store = Store(two)
    assert same(store.load().state, example(2))
    assert store.load().warnings == ()
    store.save(example(3))
    assert names(two) == ["000002", "000003"]
    assert same(Store(two).load().state, example(3))


def test_only_a_leftover_is_no_checkpoint(store):
    (store.folder / ".part-000001").mkdir(parents=True)
    assert store.load() is None
    store.save(example(1))
    assert names(store.folder) == ["000001"]


@pytest.mark.parametrize("there", [[], FILES[:1], FILES[1:2], FILES[:2], FILES[1:]])
def test_of_a_checkpoint_with_some_files_the_one_before_is_used(two, there):
    for name in set(FILES) - set(there):
        (two / "000002" / name).unlink()
    loads_the_one_before(two, "missing")


CHILDREN = '''
import os, random, signal, sys, time
from classgrad.checkpoints import Store
from states import example, same

folder, way, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(rounds)
events = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


def child(ready, stop_at):
    """Save again and again, each time saying so; stop dead at an operation on a file."""
    left = [stop_at]

    def watch(event, details):
        if event in events:
            left[0] -= 1
            if left[0] == 0:
                os._exit(0)

    store = Store(folder)
    loaded = store.load()
    counter = loaded.counter if loaded else 0
    if stop_at:
        sys.addaudithook(watch)
    while True:
        counter += 1
        store.save(example(counter))
        os.write(ready, counter.to_bytes(8, "little"))


acknowledged, stops = 0, 0
for number in range(1, rounds + 1):
    out, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(ready, number if way == "operations" else 0)
    os.close(ready)
    if way == "kill":
        os.read(out, 8)
        time.sleep(random.random() * 0.04)
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(out, "rb") as file:
        said = file.read()
    if said:
        acknowledged = int.from_bytes(said[-8:], "little")
    loaded = Store(folder).load()
    assert loaded is None or not loaded.warnings, loaded.warnings
    counter = loaded.counter if loaded else 0
    assert acknowledged <= counter <= acknowledged + 1 or not said, (acknowledged, counter)
    assert counter >= acknowledged
    assert loaded is None or same(loaded.state, example(counter))
    acknowledged = counter
    stops += bool([name for name in os.listdir(folder) if name.startswith(".")])
print(acknowledged, stops)
'''


def stopped_children(folder, way, rounds):
    folder.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    words = [sys.executable, "-c", CHILDREN, str(folder), way, str(rounds)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return [int(word) for word in found.stdout.split()]


def test_killed_at_random_moments_nothing_acknowledged_is_lost(tmp_path):
    counter, inside = stopped_children(tmp_path / "checkpoints", "kill", 40)
    assert counter > 40
    assert inside > 5  # of the moments were inside a save


def test_stopped_at_every_operation_on_a_file_nothing_acknowledged_is_lost(tmp_path):
    counter, inside = stopped_children(tmp_path / "checkpoints", "operations", 60)
    assert counter > 20
    assert inside > 20
