"""Jobs as tasks of a cluster that is not there: how tasks end, and what machines must have."""

import io
import os
import pickle
import signal
import socket
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from classgrad.checkpoints import Lock
from classgrad.checkpoints.lock import FILE_NAME as LOCK
from classgrad.cli import experiments
from classgrad.errors import Stopped, UserError
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import jobs_of_plans
from classgrad.runs.record import versions
from classgrad.runs.spec import make_plan
from classgrad.training.loop import Loop

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
from ray.exceptions import NodeDiedError, TaskCancelledError, WorkerCrashedError  # noqa: E402

from classgrad.experiments.executors import ray as cluster  # noqa: E402

DONE = {"end": "done", "done": 1.0, "accuracy": 90.5, "transfer": -1.5}


class FakeRay:
    """Takes tasks; each ends as `outcomes` says: with a message, an error, or never (None)."""

    def __init__(self, outcomes):
        self.outcomes, self.jobs, self.cancelled, self.letters = outcomes, [], [], []

    def remote(self, **options):
        assert options == {"num_cpus": 2, "num_gpus": 0, "max_retries": 0, "max_calls": 1}

        def submit(job, options, number, mailbox):
            self.jobs.append((number, job, options))
            return len(self.jobs) - 1

        submit.remote = submit
        return lambda function: submit

    def wait(self, refs, timeout):
        ended = [ref for ref in refs if self.outcomes[ref] is not None]
        return ended[:1], [ref for ref in refs if ref not in ended[:1]]

    def get(self, ref, timeout=None):
        if ref == "letters":
            taken, self.letters = self.letters, []
            return taken
        if isinstance(self.outcomes[ref], Exception):
            raise self.outcomes[ref]
        return self.outcomes[ref]

    def cancel(self, ref, force=False):
        self.cancelled.append((ref, force))

    def mailbox(self):
        return SimpleNamespace(take=SimpleNamespace(remote=lambda: "letters"))


class Watcher(experiments.LineDisplay):
    """Notes what is shown, and may do something in every tick."""

    def __init__(self, act=lambda: None):
        super().__init__(Console(file=io.StringIO(), width=300))
        self.act = act

    def tick(self, statuses):
        self.act()

    @property
    def text(self):
        return self.console.file.getvalue()


@pytest.fixture
def jobs(tmp_path):
    plans = [make_plan("split-digits", "gpm", seed=seed) for seed in (1, 2)]
    return jobs_of_plans([("gpm", plan) for plan in plans], tmp_path / "runs")


@pytest.fixture
def run(jobs, monkeypatch):
    """Return what runs jobs in the fake; returns the fake, how they ended, and what was shown."""

    def go(outcomes, act=lambda fake: None, count=1):
        fake = FakeRay(outcomes)
        monkeypatch.setattr(cluster, "ray", fake)
        monkeypatch.setattr(cluster, "new_mailbox", fake.mailbox)
        show = go.show = Watcher(lambda: act(fake))
        result = cluster.RayPool(jobs[:count], Options(9, 2, None, 2.5), show).execute()
        return fake, result, show.text

    return go


def test_a_job_goes_there_with_its_folder_locked_here(run, jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def act(fake):
        seen.append([(job.folder / LOCK).exists() for job in jobs])
        fake.outcomes[:] = [DONE, DONE]

    fake, result, _ = run([None, None], act, count=2)
    assert [(status.state, status.accuracy) for status in result] == [("done", 90.5)] * 2
    assert seen[0] == [True, True]
    assert not any((job.folder / LOCK).exists() for job in jobs)
    assert [job.folder for _, job, _ in fake.jobs] == [job.folder.absolute() for job in jobs]
    assert all(options.threads == 2 for _, _, options in fake.jobs)


def test_it_waits_until_there_is_room_and_says_how_far_it_is(run):
    def act(fake):
        if fake.outcomes == [None]:
            fake.letters = [(1, {"machine": "one"}), (7, {"done": 0.9}), (1, {"text": "hello"})]
            fake.outcomes[0] = {"end": "done", "done": 1.0}

    _, (status,), text = run([None], act)
    assert "gpm, seed 1: started\ngpm, seed 1: hello\ngpm, seed 1: done" in text
    assert status.done_before == 1.0  # and not what another task had to say


def test_a_job_whose_machine_is_gone_is_started_again(run, jobs):
    lost = NodeDiedError("gone")
    fake, (status,), text = run([lost, WorkerCrashedError(), {"end": "stopped"}, DONE])
    assert status.state == "done"
    assert [number for number, _, _ in fake.jobs] == [1, 2, 3, 4]
    for why in (" (Ray: NodeDiedError)", " (Ray: WorkerCrashedError)", ""):
        assert f"gpm, seed 1: its process is gone{why}; resuming in another process\n" in text


def test_it_is_not_started_again_for_ever(run):
    fake, (status,), _ = run([WorkerCrashedError() for _ in range(9)])
    assert len(fake.jobs) == 5
    assert (status.state, status.crash) == ("failed", False)
    assert status.why.startswith("its process is gone (Ray: WorkerCrashedError) after 5 starts")


def test_a_crash_leaves_its_trace_and_does_not_stop_the_others(run, jobs):
    trace = "Traceback ...\nRuntimeError: this is a fault\n"
    _, (first, second), _ = run([cluster.crash_message(trace), DONE], count=2)
    assert (first.state, first.crash, second.state) == ("failed", True, "done")
    path = jobs[0].folder / "crash.txt"
    assert first.why == f"RuntimeError: this is a fault; see '{path}'"
    assert path.read_text() == trace


def test_a_folder_in_use_is_busy_and_does_not_stop_the_others(run, jobs):
    with Lock(jobs[0].folder):
        fake, (first, second), _ = run([DONE], count=2)
    assert (first.state, second.state) == ("busy", "done")
    assert f"in use by process {os.getpid()} " in first.why
    assert len(fake.jobs) == 1


def test_asked_to_stop_all_are_cancelled_and_waited_for(run, jobs):
    asked = []

    def act(fake):
        if not asked:
            asked.append(signal.raise_signal(signal.SIGINT))
        elif fake.cancelled:
            fake.outcomes[:] = [{"end": "stopped"}, TaskCancelledError()]

    with pytest.raises(Stopped) as stop:
        run([None, None], act, count=2)
    assert stop.value.number == signal.SIGINT
    assert run.show.text.count(": stopped after 0.0 s\n") == 2
    assert "it is resumed" not in run.show.text
    assert not any((job.folder / LOCK).exists() for job in jobs)


def test_asked_twice_it_does_not_wait(run, jobs):
    seen = []

    def act(fake):
        seen.append(fake)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        run([None], act)
    assert len(seen) == 2
    assert seen[0].cancelled == [(0, False), (0, True)]
    assert not (jobs[0].folder / LOCK).exists()


def test_asked_to_stop_it_does_not_wait_for_ever(run, jobs, monkeypatch):
    monkeypatch.setattr(cluster, "SAVE_TIMEOUT", 0.0)
    seen = []

    def act(fake):
        if not seen:
            seen.append(fake)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        run([None], act)
    assert seen[0].cancelled == [(0, False), (0, True)]


@pytest.fixture
def attempt(tmp_path):
    """Return what runs a small job as a task does; returns its end and what it left."""

    def do(**values):
        small = {"tasks": 2, "train_per_class": 10, "batch_size": 10, "epochs": 1}
        plan = make_plan("split-digits", "gpm", values={**small, **values})
        (job,) = jobs_of_plans([("a", plan)], tmp_path)
        left = []

        def put(number, message):
            left.append((number, message))

        mailbox = SimpleNamespace(put=SimpleNamespace(remote=put))
        options = Options(threads=torch.get_num_threads())
        job, options = pickle.loads(pickle.dumps((job, options)))  # as Ray sends them
        with Lock(job.folder):  # as the pool holds it
            return cluster.attempt(job, options, 8, mailbox), left, job

    return do


def test_a_task_returns_its_end_and_leaves_the_rest_in_the_mailbox(attempt):
    end, left, job = attempt()
    record = job.record()
    assert record.complete
    assert end == {
        "end": "done",
        "done": 1.0,
        "accuracy": record.average_accuracy,
        "transfer": record.backward_transfer,
    }
    assert left[0] == (8, {"machine": socket.gethostname()})
    assert left[1][0] == 8
    assert left[1][1]["task"] == 0
    again, left, _ = attempt()
    assert again == end
    ((number, note),) = left[1:]
    assert (number, note["event"]) == (8, "note")
    assert (note["text"], note["hint"]) == ("finished before", "fresh")


def test_a_task_returns_why_it_failed_or_crashed_or_that_it_was_stopped(attempt, monkeypatch):
    end, _, _ = attempt(learning_rate=1e30)
    assert end["end"] == "failed"
    assert end["why"].startswith("the loss is ")
    monkeypatch.setattr(Loop, "step", lambda *given: signal.raise_signal(signal.SIGINT) or 0.0)
    assert attempt()[0] == {"end": "stopped"}

    def fail(*given):
        raise RuntimeError("this is a fault")

    monkeypatch.setattr(Loop, "step", fail)
    crash, _, _ = attempt()
    assert (crash["end"], crash["why"]) == ("crashed", "RuntimeError: this is a fault")
    assert crash["trace"].endswith("RuntimeError: this is a fault\n")


ANSWERS = {
    "other torch": (
        {"versions": {**versions(), "torch": "1.0"}, "seen": True},
        r"machine far \(1.2.3.4\) has torch 1.0, this one .*: install the same version on all",
    ),
    "other classgrad": (
        {"versions": {**versions(), "classgrad": "9"}, "seen": True},
        r"machine far \(1.2.3.4\) has classgrad 9, this one ",
    ),
    "no classgrad": (
        {"missing": "No module named 'classgrad'"},
        r"machine far \(1.2.3.4\) cannot import classgrad: No module named 'classgrad'; ins",
    ),
    "own disk": (
        {"versions": versions(), "seen": False},
        r"machine far \(1.2.3.4\) does not see '.*/runs': give a folder that all machines share",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_machines_that_differ_are_named_before_anything_runs(tmp_path, monkeypatch, case):
    answer, message = ANSWERS[case]
    near = {"versions": versions(), "seen": True}
    result = {"near": near, "far (1.2.3.4)": answer}
    monkeypatch.setattr(cluster, "probe_machines", lambda needed, path: result)
    with pytest.raises(UserError, match=message):
        cluster.refuse_differences(Options(), tmp_path / "runs")


def test_a_machine_is_asked_for_versions_and_for_a_file_that_does_not_stay(tmp_path, monkeypatch):
    def ask(needed, path):
        return {"here": cluster.machine_probe()(path)}

    monkeypatch.setattr(cluster, "probe_machines", ask)
    cluster.refuse_differences(Options(), tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
    assert not cluster.machine_probe()(str(tmp_path / "no"))["seen"]


SWEEP = ["sweep", "-b", "split-digits", "-m", "gpm", "--set", "tasks=2", "--ray"]
WRONG = {
    "nothing there": ("127.0.0.1:1", "the Ray cluster at '127.0.0.1:1' cannot be used: Connection"),
    "no port": ("localhost", "'localhost' is not the address of a Ray cluster: give HOST:PORT"),
    "a client": ("ray://localhost:1", "'ray://localhost:1' is not the address of a Ray cluster"),
    "wrong port": ("localhost:99999", "the Ray cluster at 'localhost:99999' cannot be used: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_address_is_one_line_code_2_nothing_written(call, tmp_path, case):
    address, message = WRONG[case]
    began = time.monotonic()
    code, out, err = call(*SWEEP, address)
    assert time.monotonic() - began < 30  # Ray itself would wait for minutes
    assert (code, out) == (2, "")
    assert err.startswith("classgrad: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_images_is_given_by_its_whole_path(call, tmp_path):
    code, out, err = call("sweep", "-b", "folder:photos", "--over", "seed=1,2", "--ray", "auto")
    assert (code, out) == (2, "")
    whole = f"folder:{tmp_path / 'photos'}"
    assert err == f"classgrad: 'folder:photos' on a cluster: give the absolute path, {whole}\n"


def test_the_address_of_the_environment_is_not_ignored(call, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    code, _, err = call(*SWEEP, "auto")
    assert code == 2
    assert "the Ray cluster at '127.0.0.1:1' cannot be used" in err


def test_without_the_package_it_says_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "classgrad.experiments.executors.ray")
    code, out, err = call(*SWEEP, "auto")
    assert (code, out) == (2, "")
    assert err == "classgrad: Ray is not installed: pip install 'classgrad[ray]'\n"


def test_a_cluster_without_room_is_refused(monkeypatch):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)

    def slots(threads, device="cpu"):
        return cluster.slots(cluster.resources(Options(threads=threads, device=device)))

    assert [slots(threads) for threads in (1, 2, 4)] == [7, 3, 1]
    assert [slots(threads, "cuda") for threads in (1, 2)] == [2, 1]
    with pytest.raises(UserError, match=r"cluster has 5 CPUs for a run: give a run fewer threads$"):
        slots(5)
    with pytest.raises(UserError, match=r"has 4 CPUs and 1 GPU for a run: .* another device"):
        slots(4, "cuda")


def test_a_run_on_a_gpu_asks_the_cluster_for_one(monkeypatch):
    asked = []

    def remote(**options):
        asked.append(options)
        return lambda work: work

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(remote=remote))
    monkeypatch.setattr(cluster, "new_mailbox", lambda: None)
    for device in ("cpu", "cuda"):
        cluster.RayPool([], Options(threads=3, device=device), None)
    result = [(one["num_cpus"], one["num_gpus"]) for one in asked]
    assert result == [(3, 0), (3, 1)]


def test_one_device_of_a_cluster_cannot_be_named(call):
    code, out, err = call(*SWEEP, "auto", "--device", "cuda:1")
    assert (code, out) == (2, "")
    assert err.startswith("classgrad: --device 'cuda:1' with --ray: give cpu, or cuda for one of")
