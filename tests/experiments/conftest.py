"""What tests of experiments share."""

import pytest

from classgrad.experiments.executors import local


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Return what puts a program in the place of the one that runs jobs."""
    package = tmp_path / "fake" / "classgrad"
    (package / "experiments").mkdir(parents=True)
    for folder in (package, package / "experiments"):
        (folder / "__init__.py").write_text("")
    real = local.environment

    def environment(threads):
        return {**real(threads), "PYTHONPATH": str(package.parent), "PLACE": str(tmp_path)}

    monkeypatch.setattr(local, "environment", environment)
    return (package / "experiments" / "worker.py").write_text
