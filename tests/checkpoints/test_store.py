"""Checkpoints survive what can happen to a process and to its files."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from checkpoints.hosts import Hosts, not_renewed, paused
from classgrad import UserError, __version__
from classgrad.checkpoints import BadCheckpoint, Lock, Store, files
from classgrad.checkpoints.files import Manifest, parse_manifest
from classgrad.checkpoints.lock import LockLost
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


def test_counters_continue_beyond_six_digits(store):
    store.folder.mkdir(parents=True)
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
            what = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            if name != "rmtree" or Path(what).exists():
                path = os.path.relpath(two / what, two)
                done.append((name, re.sub("[0-9a-f]{32}", "*", path)))
            return real(first, *rest, **named)

        monkeypatch.setattr(module, name, noted)

    for module, name in ((os, "fsync"), (os, "rename"), (shutil, "rmtree")):
        note(module, name)
    Store(two).save(example(3))
    assert done == [
        ("fsync", ".part-000003-*/state.json"),
        ("fsync", ".part-000003-*/tensors.safetensors"),
        ("fsync", ".part-000003-*/manifest.json"),
        ("fsync", ".part-000003-*"),
        ("rename", ".part-000003-*"),
        ("fsync", "."),
        ("rename", "000001"),
        ("rename", ".part-000001-*"),
        ("rmtree", ".part-*"),
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
    monkeypatch.setattr("classgrad.checkpoints.files.asdict", lambda manifest: content)
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


def test_cleared_all_checkpoints_are_gone_and_nothing_else(two):
    (two / ".part-000002").mkdir()
    Store(two).clear()
    assert not two.exists()
    Store(two).clear()
    two.mkdir()
    (two / "notes.txt").write_text("mine")
    Store(two).save(example(1))
    Store(two).clear()
    assert names(two) == ["notes.txt"]


def test_stopped_while_clearing_no_checkpoint_is_half_there(two, monkeypatch):
    def stop(*_given, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        Store(two).clear()
    assert Store(two).load() is None


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


CHILDREN = """
import os, random, signal, sys, time
from classgrad.checkpoints import Store
from states import example, same

folder = sys.argv[1]
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}
chance = random.Random(1)


def child(ready, stop_at):
    # Saves again and again and says so each time; stops dead before an operation on a file.
    left = [stop_at]

    def watch(event, details):
        if event in OPERATIONS:
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


def last_said(stop_at):
    out, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(ready, stop_at)
    os.close(ready)
    said = b""
    if not stop_at:
        said = os.read(out, 8)
        time.sleep(chance.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(out, "rb") as file:
        said += file.read()
    return int.from_bytes(said[-8:], "little")


before, inside = 0, 0
for stop_at in [*range(1, 31), *[0] * 25]:
    said = max(before, last_said(stop_at))
    inside += any(name.startswith(".") for name in os.listdir(folder))
    loaded = Store(folder).load()
    counter = loaded.counter if loaded else 0
    assert said <= counter <= said + 1, (stop_at, said, counter)
    assert loaded is None or (same(loaded.state, example(counter)) and not loaded.warnings)
    before = counter
print(counter, inside)
"""


def run_python(code, *words, before=()):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.run(
        [*before, sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_stopped_at_every_operation_or_killed_at_any_moment_nothing_said_is_lost(store):
    store.folder.mkdir(parents=True)
    result = run_python(CHILDREN, store.folder)
    assert result.returncode == 0, result.stderr
    counter, inside = map(int, result.stdout.split())
    assert counter > 40
    assert inside > 10  # of the stops were inside a save


# An owner that lost its lock


@pytest.fixture
def hosts(monkeypatch):
    monkeypatch.setattr("classgrad.checkpoints.lock.LOOK_EVERY", 75)
    return Hosts(monkeypatch)


def test_an_owner_saves_and_clears_only_while_the_lock_is_its_own(tmp_path, hosts):
    store = Store(tmp_path / "learning" / "checkpoints")
    with Lock(tmp_path) as own:
        store.save({"step": 1})
        store.save({"step": 2})
        not_renewed(own.path)
        other = hosts.take("second", tmp_path)
        for change in (lambda: store.save({"step": 3}), store.clear, store.undo):
            with pytest.raises(UserError, match=r"'second' has taken over .*: nothing was over"):
                change()
        assert names(store.folder) == ["000001", "000002"]
    other.release()
    with Lock(tmp_path / "learning"):
        store.save({"step": 3})
        (tmp_path / "learning" / "lock.json").unlink()
        with pytest.raises(UserError, match="taken over, removed or damaged: nothing was overw"):
            store.save({"step": 4})
    store.save({"step": 4})  # without a lock, whoever calls it has to know


def test_what_is_there_can_be_asked_by_another_thread_while_an_owner_saves(tmp_path, monkeypatch):
    store, asking = Store(tmp_path / "checkpoints"), Store(tmp_path / "checkpoints")
    with Lock(tmp_path):
        with monkeypatch.context() as patch:
            operations = paused(patch, 0, None)
            store.save({"step": 1})
        for at in range(1, operations() + 1):
            with monkeypatch.context() as patch:
                paused(patch, at, lambda: (asking.is_stale(), asking.load()))
                store.save({"step": at})
            assert store.load().state == {"step": at}
    for at in range(1, 4):
        with Lock(tmp_path), monkeypatch.context() as patch:
            paused(patch, at, lambda: half_saved(store))
            asking.is_stale()
            assert names(part_of(store)) == ["state.json"]


def half_saved(store):
    """Save as far as to the first file."""
    assert not store.is_stale()
    part_of(store).mkdir()
    (part_of(store) / "state.json").touch()


def part_of(store):
    return store._part(999)


def resave(store, loaded):
    for number in (1, 2):
        store.save({"step": loaded + number, "by": "second"})


def start_again(store, loaded):
    store.clear()
    resave(store, loaded)


def begin(store, loaded):
    store._part(loaded + 1).mkdir(parents=True)


@pytest.mark.parametrize("then", [begin, resave, start_again])
@pytest.mark.parametrize("change", ["save", "clear"])
def test_an_owner_that_is_paused_anywhere_and_wakes_up_later_overwrites_nothing(
    tmp_path, hosts, monkeypatch, change, then
):
    """Another process takes over in the pause; it finds all that the owner has said is saved."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    at, ends = 0, []
    while not ends or ends[-1] != "not paused":
        at += 1
        folder = tmp_path / str(at) / "checkpoints"
        own, store, theirs = Lock(folder.parent).__enter__(), Store(folder), Store(folder)
        for step in (1, 2):
            store.save({"step": step})
        seen = []

        def take_over(own=own, theirs=theirs, seen=seen):
            not_renewed(own.path)
            with hosts.on("second"):
                seen.append(hosts.take("second", own.folder))
                loaded = theirs.load()
                seen.append(loaded.state["step"] if loaded else 0)
                then(theirs, seen[1])
                seen.append(names(theirs.folder))

        with monkeypatch.context() as patch:
            paused(patch, at, take_over)
            try:
                store.save({"step": 3}) if change == "save" else store.clear()
                ends.append("done" if seen else "not paused")
            except LockLost:
                ends.append("refused")
        if seen:
            other, step, there = seen
            if change == "save":
                assert step == (3 if ends[-1] == "done" else 2)
            # What the owner saw before may be gone, but nothing that came later.
            assert set(there) - set(names(folder)) <= {"000001", "000002"}
            with hosts.on("second"):
                if then is not begin:
                    assert names(folder) == there
                    assert theirs.load().state == {"step": step + 2, "by": "second"}
                theirs.save({"step": 9})
                assert theirs.load().state == {"step": 9}
                assert not [name for name in names(folder) if name.startswith(".")]
                other.release()
        own.release()
    assert {*ends} == {"refused", "done", "not paused"}


# Nowhere to write


def fail_after(monkeypatch, count, code):
    """Make every write beyond so many bytes fail."""
    left = [count]

    class Failing:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            left[0] -= len(data)
            if left[0] < 0:
                raise OSError(code, os.strerror(code))
            return self.file.write(data)

    def opened(path, mode):
        return Failing(open(path, mode)) if mode == "xb" else open(path, mode)

    monkeypatch.setattr("classgrad.files.open", opened, raising=False)


def refuses(folder, *reasons):
    """Save without success; nothing may have changed but that the error is clear."""
    before = names(folder)
    state, store = example(3), Store(folder)
    with pytest.raises(UserError, match="cannot save to") as caught:
        store.save(state)
    message = str(caught.value)
    assert "\n" not in message
    for reason in (f"'{folder}'", *reasons):
        assert reason in message
    assert names(folder) == before
    assert same(state, example(3))


INTACT = "the checkpoint before, '000002', is intact"


@pytest.mark.parametrize("count", [0, 100, 1000, 3000, 6000, 6400])
def test_a_full_disk_is_one_clear_line_and_the_one_before_stays(two, monkeypatch, count):
    size = sum((two / "000002" / name).stat().st_size for name in FILES)
    assert size > 6400
    fail_after(monkeypatch, count, errno.ENOSPC)
    refuses(two, "No space left on device; free some space; ", INTACT)
    monkeypatch.undo()
    store = Store(two)
    assert same(store.load().state, example(2))
    store.save(example(3))
    assert same(store.load().state, example(3))


@pytest.mark.parametrize(
    ("module", "name"), [(os, "fsync"), (os, "rename"), (os, "listdir"), (Path, "mkdir")]
)
@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, "Read-only file system; give a folder that can be written to"),
        (errno.EACCES, "Permission denied; give a folder that can be written to"),
        (errno.EPERM, "Operation not permitted; give a folder that can be written to"),
        (errno.EDQUOT, "quota exceeded; free some space"),
        (errno.EIO, "Input/output error; "),
    ],
)
def test_any_failure_is_one_clear_line_and_the_one_before_stays(
    two, monkeypatch, module, name, code, remedy
):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        if name == "listdir":
            with pytest.raises(UserError, match=remedy):
                Store(two).save(example(3))
            with pytest.raises(UserError, match=f"cannot be read: {os.strerror(code)}"):
                Store(two).load()
        else:
            refuses(two, remedy, INTACT)
    assert same(Store(two).load().state, example(2))


def test_the_first_save_says_that_nothing_was_there(store, monkeypatch):
    fail_after(monkeypatch, 100, errno.ENOSPC)
    with pytest.raises(UserError, match="there is no earlier checkpoint"):
        store.save(example(1))
    assert store.load() is None


def test_a_file_in_the_place_of_the_folder_is_one_clear_line(tmp_path):
    (tmp_path / "checkpoints").write_text("x")
    with pytest.raises(UserError, match="File exists"):
        Store(tmp_path / "checkpoints").save(example(1))
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        Store(tmp_path / "checkpoints").load()


def test_what_cannot_be_stored_leaves_nothing_behind(two):
    with pytest.raises(TypeError, match="a object"):
        Store(two).save({"x": object()})
    assert names(two) == ["000001", "000002"]


def test_what_cannot_be_removed_does_not_stop_a_save(two, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        Store(two).save(example(3))
    part, *others = names(two)
    assert part.startswith(".part-")
    assert others == ["000002", "000003"]
    Store(two).save(example(4))
    assert names(two) == ["000003", "000004"]


SMALL_DISK = """
import os, subprocess, sys, torch
from classgrad import UserError
from classgrad.checkpoints import Store
from states import example, same

folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
store = Store(folder)


def refused(state):
    try:
        store.save(state)
    except UserError as error:
        print(error)
    assert sorted(os.listdir(folder)) == ["000001", "000002"]
    assert same(Store(folder).load().state, example(2))


store.save(example(1))
store.save(example(2))
refused({"large": torch.ones(200_000)})
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
refused(example(3))
subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
store.save(example(3))
assert same(Store(folder).load().state, example(3))
"""


def test_a_small_disk_that_is_full_and_then_read_only(tmp_path):
    alone = ["unshare", "--map-root-user", "--mount"]  # the disk is gone when the process ends
    probe = [*alone, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this system does not let a process mount a disk of its own")
    result = run_python(SMALL_DISK, tmp_path, before=alone)
    assert result.returncode == 0, result.stderr
    full, read_only = result.stdout.splitlines()
    assert (
        full == f"cannot save to '{tmp_path}': No space left on device; free some space; {INTACT}"
    )
    assert "Read-only file system; give a folder that can be written to" in read_only


# Other versions


def test_a_stored_checkpoint_of_schema_1_stays_readable():
    loaded = Store(DATA / "schema-1").load()
    assert same(loaded.state, example(1))
    assert (loaded.counter, loaded.code, loaded.warnings) == (1, "0.1.0", ())


def test_there_is_a_migration_and_a_stored_checkpoint_for_every_older_schema():
    assert list(files.MIGRATIONS) == list(range(1, files.SCHEMA_VERSION))
    stored = {f"schema-{version}" for version in range(1, files.SCHEMA_VERSION + 1)}
    assert {path.name for path in DATA.iterdir() if path.is_dir()} == stored


def test_older_schemas_are_migrated_step_by_step(monkeypatch):
    monkeypatch.setattr(files, "SCHEMA_VERSION", 3)
    steps = {
        1: lambda state: {**state, "done": "from 1"},
        2: lambda state: {**state, "done": state["done"] + " to 2 to 3"},
    }
    monkeypatch.setattr(files, "MIGRATIONS", steps)
    loaded = Store(DATA / "schema-1").load()
    assert same(loaded.state, {**example(1), "done": "from 1 to 2 to 3"})


def test_what_is_saved_has_the_present_schema_and_is_not_migrated(store, monkeypatch):
    monkeypatch.setattr(files, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(files, "MIGRATIONS", {1: lambda state: {}})
    store.save(example(1))
    assert same(store.load().state, example(1))


def test_a_newer_schema_is_refused_and_the_one_before_is_not_used(two, monkeypatch):
    monkeypatch.setattr(files, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(files, "__version__", "0.9.0")
    Store(two).save(example(3))
    monkeypatch.undo()
    with pytest.raises(UserError, match="has schema 2, newer than 1: update classgrad") as caught:
        Store(two).load()
    assert not isinstance(caught.value, BadCheckpoint)
    assert f"from {__version__} to at least '0.9.0'" in str(caught.value)
    assert str(two / "000003") in str(caught.value)
