"""The command doctor: what it says is what it tried."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from classgrad.cli import checks
from classgrad.cli.checks import Check, Found
from classgrad.data import datasets
from classgrad.errors import UserError
from classgrad.training.loop import Loop

ROOT = Path(__file__).parents[2]


def checked(name, data_dir=None):
    """The result of one check."""
    (check,) = [one for one in checks.checks(data_dir) if one.name == name]
    return checks.attempt(check)


def broken():
    raise ZeroDivisionError("two\nlines")


@pytest.mark.parametrize(("essential", "code"), [(True, 1), (False, 0)])
def test_the_exit_code_tells_of_essential_failures_only(call, monkeypatch, essential, code):
    def both(data_dir):
        yield Check("first", broken, "buy another", essential=essential)
        yield Check("second", lambda: Found("it works", "use it"), "unused")

    monkeypatch.setattr(checks, "checks", both)
    ended, out, _ = call("doctor")
    assert ended == code
    for words in ("ZeroDivisionError: two lines", "> buy another", "it works", "> use it"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80
    ended, out, _ = call("doctor", "--json")
    told = json.loads(out)
    assert (ended, told["ok"]) == (code, not essential)
    assert told["checks"][0] == {
        "name": "first",
        "status": "failed",
        "found": "ZeroDivisionError: two lines",
        "advice": "buy another",
        "essential": essential,
    }


def test_every_check_has_advice_for_its_failure():
    every = list(checks.checks(None))
    assert all(check.advice for check in every)
    assert [check.name for check in every if check.essential] == [
        "Python",
        "packages",
        "torch",
        "pictures",
        "features",
    ]


def test_packages_are_imported_and_their_versions_compared(monkeypatch):
    assert checked("Python").status == "ok"
    assert checked("packages").status == "ok"
    with pytest.raises(UserError, match=r"^pillow .* is older than 999$"):
        checks.versions({"pillow": "999"})
    monkeypatch.setattr(checks, "required", lambda extra=None: {"no_such_package": "1"})
    failed = checked("packages")
    assert (failed.status, failed.essential) == ("failed", True)
    assert "no_such_package" in failed.found


def test_tasks_are_really_learnt(monkeypatch):
    steps = []
    step = Loop.step
    monkeypatch.setattr(Loop, "step", lambda self, *given: steps.append(1) or step(self, *given))
    result = checked("torch")
    assert (result.status, "learnt two tasks" in result.found, len(steps) > 4) == ("ok", True, True)

    def diverging(self, *given):
        raise UserError("the loss is nan")

    monkeypatch.setattr(Loop, "step", diverging)
    assert checked("torch").found == "the loss is nan"


def test_pictures_are_really_decoded(monkeypatch):
    from classgrad.data import pictures

    result = checked("pictures")
    assert result.status == "ok"
    assert "AVIF, BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP" in result.found
    decode = pictures._decode
    monkeypatch.setattr(pictures, "_decode", lambda *given: decode(*given) // 2)
    result = checked("pictures")
    assert (result.status, "PNG: its pixels are others" in result.found) == ("failed", True)


def test_features_of_pictures_are_computed():
    result = checked("features")
    assert (result.status, "efficientnet-lite0" in result.found) == ("ok", True)


def test_damaged_weights_are_told(monkeypatch):
    def damaged(*given, **options):
        raise UserError("the weights of efficientnet-lite0 are damaged")

    monkeypatch.setattr("classgrad.Learner", damaged)
    result = checked("features")
    assert (result.status, result.essential) == ("failed", True)
    assert result.advice.startswith("install classgrad again")


def test_more_threads_than_processors_are_told(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    result = checked("threads")
    assert (result.status, "2 on 1 processors" in result.found) == ("failed", True)
    assert "OMP_NUM_THREADS" in result.advice
    assert not result.essential


def test_a_device_that_cannot_learn_is_told(monkeypatch):
    assert checked("devices").found.startswith("cpu")
    monkeypatch.setattr("classgrad.devices.available", lambda: ["cpu", "cuda:0"])
    assert checked("devices").status == "failed"


def test_the_data_folder_is_written_to_and_left_as_it_was(tmp_path):
    (tmp_path / "file").write_text("mine")
    result = checked("data folder", tmp_path)
    assert (result.status, "wrote a file" in result.found) == ("ok", True)
    result = checked("data folder", tmp_path / "not" / "there")
    assert (result.status, "which is not there yet" in result.found) == ("ok", True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    result = checked("data folder", tmp_path / "file")
    assert result.status == "failed"
    assert "CLASSGRAD_DATA" in result.advice


def test_datasets_are_really_read(tmp_path, monkeypatch):
    result = checked("data", tmp_path)
    assert (result.status, result.found) == ("absent", "no dataset")

    def load(name, root, split):
        if name != "mnist":
            raise datasets.Missing("no file")

    monkeypatch.setattr("classgrad.data.load", load)
    result = checked("data", tmp_path)
    assert result.status == "ok"
    assert result.found.startswith("decoded the test images of mnist; missing: ")

    def damaged(name, root, split):
        raise UserError(f"{name} is damaged")

    monkeypatch.setattr("classgrad.data.load", damaged)
    result = checked("data", tmp_path)
    assert (result.status, "mnist is damaged" in result.found) == ("failed", True)


DRAWS = "#!/bin/sh\necho '<html><body>42</body></html>'\n"
FAILS = "#!/bin/sh\necho 'data:text/html,<script>document.write(6 * 7)</script>'\nexit 3\n"


def test_chromium_is_really_started(tmp_path, monkeypatch):
    browser = tmp_path / "chromium"
    monkeypatch.setenv("CLASSGRAD_CHROMIUM", str(browser))
    assert checked("Chromium").status == "failed"
    for script, status, words in (
        (DRAWS, "ok", "drew a page"),
        (FAILS, "failed", "ended with code 3"),
        ("#!/bin/sh\nsleep 60\n", "failed", "drew nothing"),
    ):
        browser.write_text(script)
        browser.chmod(0o755)
        monkeypatch.setattr(checks, "CHROMIUM_TIMEOUT", 0.2 if "sleep" in script else 10)
        result = checked("Chromium")
        assert (result.status, words in result.found) == (status, True)


def test_without_chromium_nothing_is_lost(monkeypatch):
    monkeypatch.delenv("CLASSGRAD_CHROMIUM", raising=False)
    monkeypatch.setattr(checks, "CHROMIUM", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = checked("Chromium")
    assert (result.status, result.essential) == ("absent", False)


def test_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert checks.EXTRAS.keys() == extras.keys() - {"dev"}
    for name in checks.EXTRAS:
        assert len(checks.required(name)) == len(extras[name])
    assert checks.required("onnx")["torch"] == "2.9"
    assert len(checks.required()) == len(project["dependencies"])


def test_extras_are_really_imported(monkeypatch):
    assert checked("heic").found.startswith("pillow-heif ")
    monkeypatch.setitem(checks.MODULES, "pillow-heif", "no_such_module")
    result = checked("heic")
    assert (result.status, "no_such_module" in result.found) == ("failed", True)
    monkeypatch.setattr(checks, "is_installed", lambda package: False)
    result = checked("heic")
    assert (result.status, result.advice) == (
        "absent",
        "pip install 'classgrad[heic]': HEIC photos are read",
    )
