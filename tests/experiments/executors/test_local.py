"""Jobs in processes: what they say, how they end, and how they are stopped.

The processes here are no real runs, so that they start at once.
"""

import io
import json
import os
import re
import signal
import sys
import time

import pytest
from rich.console import Console

from classgrad.cli import experiments
from classgrad.errors import Stopped
from classgrad.experiments.executors import local
from classgrad.experiments.executors.local import LocalPool
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import Status, jobs_of_plans
from classgrad.runs.spec import make_plan

DONE = """
import json, sys
job = json.loads(sys.stdin.readline())
print(json.dumps({"task": 0, "tasks": 2, "done": 0.5, "accuracy": 80.5, "transfer": None}))
print(json.dumps({"tell": "hello"}))
print(json.dumps({"end": "done", "done": 1.0, "accuracy": 90.5, "transfer": -1.5}), flush=True)
"""


class Watcher(experiments.LineDisplay):
    """Notes what happens, and may do something about it in every tick."""

    def __init__(self, act=lambda statuses: None):
        super().__init__(Console(file=io.StringIO(), width=200))
        self.act, self.most = act, 0

    def tick(self, statuses):
        self.most = max(self.most, sum(status.state == "running" for status in statuses))
        self.act(statuses)

    @property
    def text(self):
        return self.console.file.getvalue()


def execute(jobs, options, show):
    return LocalPool(jobs, options, show).execute()


@pytest.fixture
def jobs(tmp_path):
    plans = [make_plan("split-digits", "gpm", seed=seed) for seed in (1, 2, 3)]
    return jobs_of_plans([("gpm", plan) for plan in plans], tmp_path / "runs")


def test_so_many_run_at_once_and_all_come_to_their_end(worker, jobs):
    worker(DONE)
    show = Watcher()
    found = execute(jobs, Options(count=2), show)
    assert [(status.state, status.accuracy, status.transfer) for status in found] == [
        ("done", 90.5, -1.5)
    ] * 3
    assert show.most <= 2
    for seed in (1, 2, 3):
        assert f"gpm, seed {seed}: started\n" in show.text
        assert f"gpm, seed {seed}: hello\n" in show.text
    assert len(re.findall(r"done after 0\.\d s, ACC 90\.50, BWT -1\.50\n", show.text)) == 3


def test_a_job_goes_to_its_process_as_json_with_its_threads(worker, jobs, tmp_path):
    worker(
        "import json, os, sys\n"
        "job = json.loads(sys.stdin.readline())\n"
        "job['environment'] = os.environ.get('OMP_NUM_THREADS')\n"
        "job['apart'] = os.getsid(0) == os.getpid()\n"
        "open(os.environ['PLACE'] + '/job.json', 'w').write(json.dumps(job))\n"
    )
    execute(jobs[:1], Options(threads=3, save_minutes=2.5, data_dir=tmp_path), Watcher())
    job = json.loads((tmp_path / "job.json").read_text())
    assert job["plan"] == json.loads(json.dumps(jobs[0].plan.as_dict()))
    assert job["folder"] == str(jobs[0].folder)
    assert (job["threads"], job["environment"]) == (3, "3")
    assert job["apart"]  # Ctrl-C does not reach it
    assert (job["save_minutes"], job["data_dir"]) == (2.5, str(tmp_path))


def test_failed_busy_and_crashed_jobs_do_not_stop_the_others(worker, jobs):
    worker(
        "import json, sys\n"
        "seed = json.loads(sys.stdin.readline())['plan']['seed']\n"
        "if seed == 1:\n"
        "    print(json.dumps({'end': 'failed', 'why': 'the loss is nan'}))\n"
        "    sys.exit(2)\n"
        "if seed == 2:\n"
        "    raise RuntimeError('this is a fault')\n"
        "print(json.dumps({'end': 'busy', 'why': 'in use'}))\n"
    )
    failed, crashed, busy = execute(jobs, Options(), Watcher())
    assert (failed.state, failed.why, failed.crash) == ("failed", "the loss is nan", False)
    assert (busy.state, busy.why, busy.crash) == ("busy", "in use", False)
    assert (crashed.state, crashed.crash) == ("failed", True)
    trace = jobs[1].folder / "crash.txt"
    assert crashed.why == f"RuntimeError: this is a fault; see '{trace}'"
    assert "Traceback" in trace.read_text()
    assert jobs[1].state() == "missing"
    worker(DONE)
    execute(jobs, Options(), Watcher())
    assert not trace.exists()


def test_a_crash_without_a_word_names_the_signal(worker, jobs):
    worker("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    (status,) = execute(jobs[:1], Options(), Watcher())
    assert status.crash
    assert status.why.startswith("ended by SIGSEGV; see ")


def test_a_process_that_is_killed_is_started_once_more(worker, jobs):
    worker(
        "import os, signal\n"
        "mark = os.environ['PLACE'] + '/killed'\n"
        "if not os.path.exists(mark):\n"
        "    open(mark, 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n" + DONE
    )
    show = Watcher()
    assert [status.state for status in execute(jobs[:2], Options(), show)] == ["done", "done"]
    assert show.text.count("its process was killed; resuming in another process") == 1
    worker("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (status,) = execute(jobs[:1], Options(), Watcher())
    assert (status.state, status.crash) == ("failed", False)
    assert status.why.startswith("its process was killed after 2 starts: if memory is short")


def test_a_process_that_is_told_to_end_is_not_started_again(worker, jobs):
    worker("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    (status,) = execute(jobs[:1], Options(), Watcher())
    assert (status.state, status.starts) == ("stopped", 1)


WAITING = """
import json, os, signal, sys, time
def stop(number, frame):
    open(os.environ['PLACE'] + '/asked', 'a').write('x')
    HOW
signal.signal(signal.SIGTERM, stop)
print(json.dumps({"done": 0.1}), flush=True)
time.sleep(60)
"""
SAVING = WAITING.replace("HOW", "print(json.dumps({'end': 'stopped'}), flush=True); sys.exit(143)")


def asking(number, times=1):
    """Return what sends signals to this process, one in each tick, when a job has begun."""
    left = [times]

    def act(statuses):
        if left[0] and any(status.done for status in statuses):
            left[0] -= 1
            signal.raise_signal(number)

    return act


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_tells_each_process_once_and_waits(worker, jobs, tmp_path, number):
    worker(SAVING)
    before = signal.getsignal(number)
    show = Watcher(asking(number))
    with pytest.raises(Stopped) as stopped:
        execute(jobs[:1], Options(), show)
    assert stopped.value.number == number
    assert (tmp_path / "asked").read_text() == "x"
    assert "stopped after" in show.text
    assert signal.getsignal(number) is before


def test_asked_twice_it_ends_at_once(worker, jobs, tmp_path):
    worker(WAITING.replace("HOW", "pass"))
    show = Watcher(asking(signal.SIGINT, times=2))
    began = time.monotonic()
    with pytest.raises(Stopped):
        execute(jobs, Options(), show)
    assert time.monotonic() - began < 10
    assert "seed 2" not in show.text


def test_the_environment_finds_the_same_modules(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = local.environment(None)
    assert found["PYTHONPATH"].split(os.pathsep) == [path for path in sys.path if path]
    assert found["OMP_NUM_THREADS"] == "7"
    assert local.environment(2)["OMP_NUM_THREADS"] == "2"


def statuses(jobs):
    waiting, running, failed = (Status(job) for job in jobs)
    running.begin()
    running.update({"task": 2, "tasks": 10, "done": 0.2, "accuracy": 81.25, "transfer": -0.5})
    failed.begin()
    failed.end("failed", "the loss is nan")
    return [waiting, running, failed]


def on_screen(height, jobs):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=height)
    with experiments.job_display(console) as show:
        show.tick(statuses(jobs))
        show.changed(statuses(jobs)[2])
    return console.file.getvalue()


def test_on_a_terminal_there_is_a_table(jobs):
    text = on_screen(30, jobs)
    for part in ("waiting", "task 3/10", "20 %", "81.25", "-0.50", "failed", "the loss is nan"):
        assert part in text
    assert "3 runs: 1 waiting, 1 running, 1 failed" in text


def test_on_a_small_terminal_only_running_jobs_are_listed(jobs):
    text = on_screen(7, jobs)
    assert "task 3/10" in text
    assert "3 runs: 1 waiting, 1 running, 1 failed" in text
    shown = Console(file=io.StringIO(), width=80)
    shown.print(experiments.job_table(statuses(jobs), height=7))
    assert "waiting" not in shown.file.getvalue()
    assert max(len(line) for line in shown.file.getvalue().splitlines()) <= 80


def test_time_left_is_told_by_what_was_done_since_the_start(jobs, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    status = Status(jobs[0])
    status.begin()
    status.update({"done": 0.5})  # of a run that was cut
    assert status.left is None
    now[0] = 110.0
    status.update({"done": 0.6})
    assert status.left == pytest.approx(40)
    assert experiments.time_text(status) == "40.0 s left"
    status.end("done")
    now[0] = 200.0
    assert (status.seconds, status.left) == (10, None)
    assert experiments.time_text(status) == "10.0 s"
