"""What all tests share."""

import sys

import pytest
import torch

from classgrad import cli


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
