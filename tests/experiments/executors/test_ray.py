"""Runs on Ray clusters on this machine: one of `--ray auto`, and one of three nodes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from classgrad.checkpoints import Lock

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
from classgrad.experiments.executors.ray import QUIET

SRC = Path(__file__).parents[3] / "src"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    **QUIET,
    "PYTHONPATH": str(SRC),
    "OMP_NUM_THREADS": "1",
    "RAY_health_check_period_ms": "300",  # a node that was killed is missed soon
    "RAY_health_check_failure_threshold": "3",
}
# Prints the address, and for every line that comes kills the node that runs something.
CLUSTER = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster

def busy(node):
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return any(b"ray::attempt" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)

head = {"num_cpus": 0, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
nodes = [cluster.add_node(num_cpus=1, wait=False) for _ in range(2)]
cluster.wait_for_nodes()
print(cluster.address, flush=True)
for line in sys.stdin:
    (node,) = [node for node in nodes if busy(node)]
    cluster.remove_node(node, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
"""
TINY = ["--set", "tasks=2", "--set", "train_per_class=10", "--set", "batch_size=10"]
LONG = [*TINY, "--set", "epochs=100"]  # a few seconds
SWEEP = ["sweep", "-b", "split-digits", "-m", "finetune", *LONG, "--save-minutes", "0.001"]
TWO = [*SWEEP, "--over", "seed=1,2"]


class Nodes:
    """The cluster."""

    def __init__(self, process):
        self.process = process
        self.address = process.stdout.readline().strip()
        assert self.address

    def kill_the_busy_one(self):
        self.process.stdin.write("one\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"


@pytest.fixture(scope="module")
def nodes():
    with tempfile.TemporaryDirectory(prefix="ray") as place:
        process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            env={**ENVIRONMENT, "RAY_TMPDIR": place},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        yield Nodes(process)
        process.communicate()


@pytest.fixture(autouse=True)
def one_thread():
    """What is computed here is compared with what processes with one thread compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def started(place, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "classgrad", *words],
        cwd=place,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """Wait for a process; return exit code, standard output and error."""
    try:
        out, err = process.communicate(timeout=400)
    finally:
        process.kill()
    return process.returncode, out, err


def until_saved(process, place):
    """Wait until a run has saved something."""
    end = time.monotonic() + 300
    while not list(place.glob("runs/*/checkpoints/0*/manifest.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def records(place):
    """Return all records in a folder without their times."""
    result = {}
    for path in place.glob("*/record.json"):
        result[path.parent.name] = json.loads(path.read_text())
        del result[path.parent.name]["seconds"]
    return result


def alone(call, place, methods, *words):
    """Return the records of the same runs by `classgrad run`."""
    code, _, err = call("run", "split-digits", "-m", methods, *words, "--out", "alone")
    assert code == 0, err
    return records(place / "alone")


def processes_of(place):
    """Return the command lines of processes that name a folder."""
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if str(place).encode() in line:
            result.append(line)
    return result


@pytest.mark.faults
def test_runs_on_a_cluster_end_as_runs_without_one(call, tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray") as place:
        words = ["sweep", "-b", "split-digits", "-m", "gpm", *TINY, "--over", "epochs=2,3"]
        process = started(tmp_path, *words, "--jobs", "1", "--ray", "auto", RAY_TMPDIR=place)
        code, out, err = ended(process)
        assert processes_of(place) == []
    assert (code, err) == (0, ""), out
    assert len(re.findall(r"^gpm epochs=[23], seed 1: done after .+$", out, re.M)) == 2
    expected = alone(call, tmp_path, "gpm", *TINY, "--set", "epochs=2")
    expected |= alone(call, tmp_path, "gpm", *TINY, "--set", "epochs=3")
    assert records(tmp_path / "runs") == expected


@pytest.mark.faults
def test_stopped_it_saves_and_ends_its_cluster_and_resumes_without_one(call, tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray") as place:
        process = started(tmp_path, *TWO, "--jobs", "1", "--ray", "auto", RAY_TMPDIR=place)
        until_saved(process, tmp_path)
        assert processes_of(place)
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
        assert code == 130, err
        assert err == "classgrad: stopped; the same command resumes it\n"
        assert re.search(r"^finetune, seed 1: stopped after [\d.]+ s$", out, re.M)
        assert processes_of(place) == []
    (folder,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} <= {"checkpoints", "record.json"}  # no lock
    code, out, err = ended(started(tmp_path, *TWO))
    assert code == 0, err
    assert err == ""
    assert "2 of 2 runs to do: about " in out
    assert re.search(r"^ finetune +finetune +1 +cut ", out, re.M)
    assert re.search(r"^finetune, seed 1: resuming with task [12]$", out, re.M)
    assert records(tmp_path / "runs") == alone(call, tmp_path, "finetune", *LONG, "--seed", "1,2")


@pytest.mark.faults
def test_a_lost_node_a_failed_run_and_one_in_use_do_not_stop_the_others(call, nodes, tmp_path):
    """The node of the first run is killed: it resumes on another one, to the same bits."""
    expected = alone(call, tmp_path, "gpm,finetune", *LONG, "--set", "learning_rate=0.02")
    in_use = next(name for name in expected if "finetune" in name)
    words = ["-b", "split-digits", "-m", "gpm,finetune", *LONG, "--over", "learning_rate=0.02,1e30"]
    words += ["--jobs", "1", "--save-minutes", "0.001", "--ray", nodes.address]
    with Lock(tmp_path / "runs" / in_use):
        process = started(tmp_path, "sweep", *words)
        until_saved(process, tmp_path)
        nodes.kill_the_busy_one()
        code, out, err = ended(process)
    assert code == 2
    assert err.startswith(
        "classgrad: 3 of 4 runs did not finish: finetune learning_rate=0.02, seed 1:"
    )
    assert err.count("\n") == 1
    assert f"is in use by process {os.getpid()} " in err
    assert err.count("the loss is ") == 2
    lost = r"its process on .+ is gone \(Ray: \w+\); resuming in another process"
    for message in (lost, "resuming with task [12]", "done after .+"):
        assert re.search(rf"^gpm learning_rate=0.02, seed 1: {message}$", out, re.M), out
    complete = {
        name: record for name, record in records(tmp_path / "runs").items() if record["complete"]
    }
    assert complete == {name: record for name, record in expected.items() if name != in_use}
