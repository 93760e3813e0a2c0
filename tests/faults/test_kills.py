"""Runs that are killed without warning go on to the same bits; `make faults` kills more of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from classgrad.methods import METHODS

ROOT = Path(__file__).parent.parent.parent
KILLS = 15  # of each method

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def survivors(tmp_path_factory):
    out = tmp_path_factory.mktemp("faults") / "found.json"
    places = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    subprocess.run(
        [sys.executable, "-m", "faults", "--kills", str(KILLS), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        timeout=600,
    )
    return json.loads(out.read_text())["methods"]


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_run_ends_as_one_that_was_left_alone(survivors, name):
    assert sum(survivors[name]["kills"].values()) == KILLS
    assert survivors[name]["wrong"] == 0
