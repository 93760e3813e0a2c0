"""Jobs in processes: what they say, how they end, and how they are stopped.

The processes here are no real runs, so that they start at once.
"""

import functools
import io
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from classgrad import cli
from classgrad.cli import experiments
from classgrad.cli.logs import TextLog
from classgrad.cli.options import make_plans, parse_seeds, parse_settings
from classgrad.errors import Stopped
from classgrad.experiments import spec
from classgrad.experiments.executors import local
from classgrad.experiments.executors.local import LocalPool
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import Status, jobs_of_experiments, jobs_of_plans
from classgrad.runs import recipes
from classgrad.runs.run import run_folder
from classgrad.runs.spec import make_plan

DONE = """
import json
print(json.dumps({"task": 0, "tasks": 2, "done": 0.5, "accuracy": 80.5, "transfer": None}))
print(json.dumps({"event": "note", "text": "hello"}))
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
    result = execute(jobs, Options(count=2), show)
    assert [(status.state, status.accuracy, status.transfer) for status in result] == [
        ("done", 90.5, -1.5)
    ] * 3
    assert show.most <= 2
    for seed in (1, 2, 3):
        assert f"gpm, seed {seed}: started\n" in show.text
        assert f"gpm, seed {seed}: hello\n" in show.text
    assert len(re.findall(r"done after 0\.\d s, ACC 90\.50, BWT -1\.50\n", show.text)) == 3


def test_a_job_is_a_process_of_run_with_its_threads(worker, jobs, tmp_path):
    worker(
        "import json, os, sys\n"
        "threads, apart = os.environ.get('OMP_NUM_THREADS'), os.getsid(0) == os.getpid()\n"
        "started = [sys.argv[1:], threads, apart, sys.stdin.read()]\n"
        "open(os.environ['PLACE'] + '/started.json', 'w').write(json.dumps(started))\n"
    )
    options = Options(threads=3, save_minutes=2.5, data_dir=tmp_path)
    execute(jobs[:1], options, Watcher())
    words, threads, apart, text = json.loads((tmp_path / "started.json").read_text())
    assert words == ["run", *local.arguments(jobs[0], options)]
    assert threads == "3"
    assert apart  # Ctrl-C does not reach it
    assert text == ""  # it does not read what is meant for the parent


def parsed(job, options):
    """Return parameters and plan of `classgrad run`, as it parses the arguments of a job."""
    app, taken = typer.Typer(), {}

    @app.command()
    @functools.wraps(cli.run.run)
    def note(**parameters):
        taken.update(parameters)

    app(local.arguments(job, options), standalone_mode=False)
    words = (taken[name] for name in ("benchmark", "method", "network", "recipe"))
    (seed,) = parse_seeds(taken["seed"])
    (plan,) = make_plans(*words, seed, parse_settings(taken["settings"] or []))
    return taken, plan


def same_plan(job):
    """Tell whether the arguments of a job make its plan."""
    return parsed(job, Options())[1].as_dict() == job.plan.as_dict()


def test_the_arguments_name_all_options_and_the_folder_of_the_job(jobs, tmp_path, monkeypatch):
    monkeypatch.delenv("CLASSGRAD_DATA", raising=False)
    options = Options(4, 3, tmp_path / "data", 2.5, "cuda")
    taken, plan = parsed(jobs[0], options)
    assert Path(taken["out"]) / taken["name"] == jobs[0].folder == run_folder(taken["out"], plan)
    assert (taken["threads"], taken["save_minutes"], taken["device"]) == (3, 2.5, "cuda")
    assert (taken["data_dir"], taken["progress"]) == (tmp_path / "data", "json")
    remote = replace(jobs[0], url=f"s3://bucket/a/{jobs[0].folder.name}")
    taken, _ = parsed(remote, Options())
    assert (taken["out"], taken["data_dir"], taken["threads"]) == ("s3://bucket/a", None, None)


@pytest.mark.parametrize("recipe", recipes.names())
@pytest.mark.parametrize("name", spec.names())
def test_the_arguments_of_every_line_of_every_experiment_make_the_same_plan(name, recipe):
    for job in jobs_of_experiments([spec.load(name)], recipe, [7], Path("runs")):
        assert same_plan(job)


LAYERS = st.dictionaries(st.sampled_from(["*", "fc1", "fc2"]), st.floats(0.5, 0.99), min_size=1)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "eta": st.floats(0, 1),
        "lambda": st.floats(0, 10),
        "energy": st.floats(0.5, 0.99) | LAYERS,
        "reading": st.sampled_from(["algorithm", "text", "released", "pooled"]),
        "correct_only": st.booleans(),
        "max_basis_mb": st.none() | st.floats(1, 1e6),
        "epochs": st.integers(1, 100),
        "learning_rate": st.floats(1e-9, 1e9),
        "tasks": st.integers(1, 20),
    },
)


@given(VALUES, st.sampled_from(["mlp", None]))
@settings(deadline=None)
def test_the_arguments_of_any_settings_make_the_same_plan(values, network):
    plan = make_plan("permuted-digits", "cgp", network=network, values=values)
    (job,) = jobs_of_plans([("a", plan)], Path("runs"))
    assert same_plan(job)


def test_a_recipe_in_a_file_is_given_by_its_path(tmp_path):
    file = tmp_path / "file.toml"
    file.write_text('name = "mine"\ndescription = "a test"\nnetwork = "mlp"\ntraining.epochs = 3\n')
    plan = make_plan("split-digits", "gpm", recipe=str(file))
    assert (plan.recipe, plan.training.epochs) == ("mine", 3)
    (job,) = jobs_of_plans([("a", plan)], tmp_path)
    assert same_plan(job)


def test_failed_busy_and_crashed_jobs_do_not_stop_the_others(worker, jobs):
    worker(
        "import json, sys\n"
        "seed = sys.argv[sys.argv.index('--seed') + 1]\n"
        "if seed == '1':\n"
        "    print(json.dumps({'end': 'failed', 'why': 'the loss is nan'}))\n"
        "    sys.exit(2)\n"
        "if seed == '2':\n"
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


def test_a_process_that_would_run_something_else_is_killed(worker, jobs):
    worker('print(\'{"plan": "another"}\', flush=True)\nimport time; time.sleep(60)')
    (status,) = execute(jobs[:1], Options(), Watcher())
    assert (status.state, status.why, status.starts) == ("failed", local.CHANGED, 1)


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


def test_a_process_that_is_stopped_is_not_started_again(worker, jobs):
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
    result = local.environment(None)
    assert result["PYTHONPATH"].split(os.pathsep) == [path for path in sys.path if path]
    assert result["OMP_NUM_THREADS"] == "7"
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
    with experiments.job_display(TextLog(console)) as show:
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


def test_time_left_is_estimated_from_what_was_done_since_the_start(jobs, monkeypatch):
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
