"""Every example runs to its end, prints something, and warns of nothing."""

import os
from pathlib import Path

import pytest

from forked import Forked

EXAMPLES = sorted(Path(__file__).parent.parent.glob("examples/*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_without_a_warning(path, tmp_path):
    process = Forked(["-W", "error", str(path)], tmp_path, os.environ)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.strip()
    assert err == ""
