"""Runs killed without warning resume to the same bits; `make faults` kills more of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from families import FAMILIES
from faults.kills import CALLS, RANDOM

ROOT = Path(__file__).parent.parent.parent
KILLS = 2  # of a method of each family: one at a random moment, one in a call


@pytest.mark.slow
def test_killed_runs_end_as_those_that_were_left_alone(tmp_path):
    """All in one process, which loads PyTorch once and forks."""
    out = tmp_path / "found.json"
    places = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "faults", "--kills", str(KILLS), "--out", str(out)),
            *("--methods", *FAMILIES),
        ],
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    methods = json.loads(out.read_text())["methods"]
    assert list(methods) == list(FAMILIES)
    for name, result in methods.items():
        assert sum(result["kills"].values()) == KILLS, name
        assert result["kills"][RANDOM] == KILLS / 2, name
        assert result["wrong"] == 0, name
    for place in {place for place, _ in CALLS}:
        assert sum(result["kills"][place] for result in methods.values()) >= 1, place
