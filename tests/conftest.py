"""What all tests share."""

import signal
import sys

import pytest
import torch

from classgrad import cli
from classgrad.experiments.executors import local
from classgrad.training.loop import Loop


def pytest_collection_modifyitems(items):
    """Begin with files that have slow tests, so that no process is left with them in the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def global_chance_untouched():
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
    """Return what puts a program in the place of the one that runs jobs of experiments."""
    package = tmp_path / "fake" / "classgrad"
    place = package / "experiments" / "executors"
    place.mkdir(parents=True)
    for folder in (package, place.parent, place):
        (folder / "__init__.py").write_text("")
    real = local.environment

    def environment(threads):
        return {**real(threads), "PYTHONPATH": str(package.parent), "PLACE": str(tmp_path)}

    monkeypatch.setattr(local, "environment", environment)
    return (place / "worker.py").write_text
