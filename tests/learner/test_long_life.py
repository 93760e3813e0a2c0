"""A learner that lives long: forty tasks in as many processes, some of which are killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    places = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "learner.long_life", str(tmp_path_factory.mktemp("life"))],
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_forty_tasks_later_the_first_is_classified_as_well_as_when_it_was_learnt(life):
    assert life["tasks"] == 40
    assert abs(life["at the end"] - life["when learnt"]) <= 1
    assert life["when learnt"] > 90
    assert life["last task"] > 90
    assert life["finetuned"] < life["when learnt"] - 5  # there was something to protect it from


def test_processes_that_were_killed_left_no_trace(life):
    assert life["kills"] == 5
    assert life["same as in one process"]
