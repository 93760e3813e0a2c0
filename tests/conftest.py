"""What all tests share."""

import gc
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: tests with processes starve else

import pytest
import torch

from classgrad import cli
from classgrad.experiments.executors import local
from classgrad.training.loop import Loop

# What `make check` runs of the tests: these, and the contract of one method.
QUICK = (
    "checkpoints",
    "contract/test_networks.py",
    "core",
    "identity",
    "methods/projection/test_cgp.py",
    "methods/projection/test_gpm.py",
    "methods/test_saved_state.py",
    "networks",
    "prediction",
    "runs/test_recipes.py",
    "runs/test_spec.py",
    "test_files.py",
    "test_layers.py",
    "test_settings.py",
    "test_tasks.py",
    "training",
)
QUICK_METHOD = "gpm"


def pytest_collection_modifyitems(items):
    """Mark quick tests, and begin with files that have slow ones.

    No process is left with a slow test in the end.
    """
    folder = Path(__file__).parent
    quick = {folder / name for name in QUICK}
    for item in items:
        in_contract = item.path.parent == folder / "contract" and hasattr(item, "callspec")
        if quick & {item.path, *item.path.parents} or (
            in_contract and item.callspec.params.get("name") == QUICK_METHOD
        ):
            item.add_marker("quick")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Look for garbage less often, and not in modules and tests: it takes a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def global_rng_untouched():
    """No code under test may draw from PyTorch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Call the command line in an empty folder; return exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLASSGRAD_DATA", raising=False)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["classgrad", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        streams = capsys.readouterr()
        return ended.value.code or 0, streams.out, streams.err

    return run


@pytest.fixture
def stopped(call, monkeypatch):
    """Call the command line, which is asked to stop in a certain step."""

    def run(number, *words):
        step, seen = Loop.step, []

        def stopping(self, *given):
            seen.append(1)
            if len(seen) == number:
                signal.raise_signal(signal.SIGTERM)
            return step(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "step", stopping)
            code, _, err = call(*words)
        assert code == 143
        return err

    return run


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Return what puts a program in the place of `python -m classgrad`, for jobs."""
    package = tmp_path / "fake" / "classgrad"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    real = local.environment

    def environment(threads):
        return {**real(threads), "PYTHONPATH": str(package.parent), "PLACE": str(tmp_path)}

    monkeypatch.setattr(local, "environment", environment)
    return (package / "__main__.py").write_text
