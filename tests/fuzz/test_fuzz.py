"""A short version of `make fuzz`, and tests that the fuzzing itself would notice."""

import contextlib
import os
import pickle
import subprocess
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import strategies as st

from classgrad.errors import UserError
from fuzz import guard
from fuzz.engine import fuzz
from fuzz.target import Target
from fuzz.targets import TARGETS

INPUTS = 40
PICKLES = [name for name in TARGETS if name.startswith("cifar") and "archive" not in name]

# A failure prints the whole input, however long.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


@pytest.mark.parametrize("name", list(TARGETS))
def test_damaged_files_are_read_or_refused_in_one_line(name, tmp_path):
    outcomes = fuzz(TARGETS[name], tmp_path, INPUTS, repeatable=True)
    assert outcomes.total() >= INPUTS
    assert outcomes["refused"] > INPUTS / 10


class Call:
    """Something that a pickle would call when it is loaded."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("name", [*PICKLES, "notmnist32"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_no_code_in_a_pickle_is_run(name, protocol, tmp_path):
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w')"
    calls = [
        Call(os.system, f"touch {marker}"),
        Call(eval, code),
        Call(exec, code),
        Call(open, str(marker), "w"),
        Call(subprocess.Popen, ["touch", str(marker)]),
    ]
    path = TARGETS[name].make(tmp_path)
    for call in calls:
        path.write_bytes(pickle.dumps({"data": call, "labels": [1]}, protocol))
        with pytest.raises(UserError, match="asks for"), guard.guarded(tmp_path):
            TARGETS[name].read(tmp_path)
        assert not marker.exists()


def write(folder: Path) -> Path:
    path = folder / "file"
    path.write_bytes(b"sound")
    return path


def target(spoil):
    """Return a target that does something wrong, but not with its sound file."""

    def read(folder: Path) -> None:
        if (folder / "file").read_bytes().startswith(b"bad"):
            spoil(folder)

    bad = st.just(b"bad")
    return Target("bad", write, read, lambda sound: bad)


def refuse(message):
    raise UserError(message)


def spin(folder):
    until = time.process_time() + 9
    while time.process_time() < until:
        pass


def swallow(folder):
    with contextlib.suppress(Exception):
        eval("1 + 1")


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda folder: {}["key"], KeyError, "key"),
        (lambda folder: refuse("two\nlines"), AssertionError, "one plain line"),
        (lambda folder: refuse("\x1b[1m"), AssertionError, "one plain line"),
        (lambda folder: refuse(""), AssertionError, "no message"),
        (lambda folder: refuse("x" * 5000), AssertionError, "5000 characters"),
        (lambda folder: warnings.warn("odd", stacklevel=1), AssertionError, "warned: odd"),
        (lambda folder: bytearray(2 * guard.MEMORY), MemoryError, None),
        (spin, AssertionError, "seconds"),
        (lambda folder: (folder.parent / "outside").write_text(""), AssertionError, "outside of"),
        (lambda folder: (folder.parent / "outside").mkdir(), AssertionError, "outside of"),
        (lambda folder: (folder / "file").rename("moved"), AssertionError, "outside of"),
        (lambda folder: os.system("true"), AssertionError, "os.system"),
        (lambda folder: subprocess.run(["true"], check=True), AssertionError, "subprocess"),
        (lambda folder: pickle.loads(pickle.dumps(print)), AssertionError, "pickle.find_class"),
        (swallow, AssertionError, "compile"),
    ],
)
def test_what_must_not_happen_is_noticed(spoil, error, message, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "SECONDS", 0.2)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(error, match=message):
        fuzz(target(spoil), folder, 30, repeatable=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_writing_in_the_folder_and_clear_refusals_are_fine(tmp_path):
    def spoil(folder: Path) -> None:
        (folder / "more").write_text("")
        refuse("'bad' is not good: give another")

    assert fuzz(target(spoil), tmp_path, 30, repeatable=True)["refused"] > 0
