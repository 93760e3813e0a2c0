"""Threads that share a learner, and processes that share its folder."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from classgrad import GPM, Learner, UserError, leakage
from classgrad.learner.export import export
from classgrad.learner.usage import Usage
from classgrad.networks.network import preserved_rng
from classgrad.training.config import Training

QUICK = Training(epochs=3, batch_size=16, learning_rate=0.05)
THREADS, ROUNDS = 4, 40


def trunk():
    with preserved_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


def data(task, count=60):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(task))
    return x + task, (x[:, task % 6] > 0).long()


def learn(learner, task, **options):
    return learner.learn(f"t{task}", data(task), classes=["minus", "plus"], **options)


@pytest.fixture(scope="module")
def learner():
    """Return a learner of three tasks, whose features depend on the task."""
    made = Learner(trunk(), GPM(), training=QUICK)
    for task in range(3):
        learn(made, task)
    return made


def answers(learner, task):
    return [(p.name, p.probability) for p in learner.predict(data(9)[0], task)]


def test_threads_that_predict_for_different_tasks_get_the_answers_of_one_thread(learner):
    tasks = ["t0", "t1", "t2", None]
    expected = {task: answers(learner, task) for task in tasks}
    assert len({str(value) for value in expected.values()}) == len(tasks)
    wanted = tasks * ROUNDS
    with ThreadPoolExecutor(THREADS) as pool:
        given = list(pool.map(lambda task: answers(learner, task), wanted))
    assert all(answer == expected[task] for task, answer in zip(wanted, given, strict=True))


def test_a_frozen_copy_answers_as_before_while_the_learner_learns(learner, tmp_path):
    alone = Learner(trunk(), GPM(), training=QUICK)
    learning = Learner(trunk(), GPM(), training=QUICK)
    for task in range(2):
        learn(alone, task)
        learn(learning, task)
    learn(alone, 2)
    frozen = learning.frozen()
    before = answers(frozen, None)
    reference = learning.reference(data(9)[0], "t0")
    started, done = threading.Event(), threading.Event()

    def observer(progress):
        started.set()
        assert done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        learnt = pool.submit(learn, learning, 2, observer=observer)
        assert started.wait(60)
        during = [answers(frozen, None) for _ in range(5)]
        assert learning.net.training
        for use in (
            lambda: learning.predict(data(9)[0]),
            lambda: learning.save("nowhere"),
            lambda: learning.reference(data(9)[0], "t0"),
            lambda: leakage(learning, reference),
            lambda: export(learning, tmp_path / "one.pt2", "t0"),
        ):
            with pytest.raises(UserError, match=r"is learning: use a copy that .*frozen"):
                use()
        assert learning.net.training
        with pytest.raises(UserError, match="learning in another thread"):
            learn(learning, 3)
        done.set()
        learnt.result()
    assert during == [before] * 5
    assert answers(frozen, None) == before
    assert answers(learning, None) == answers(alone, None) != before


def test_a_frozen_copy_only_predicts(learner):
    frozen = learner.frozen()
    assert answers(frozen, None) == answers(learner, None)
    for change in (lambda: learn(frozen, 5), lambda: frozen.forget_class("t0", "plus")):
        with pytest.raises(UserError, match="a frozen learner only predicts"):
            change()


def test_learning_waits_for_predictions_that_have_begun():
    usage, order = Usage(), []
    reading, release = threading.Event(), threading.Event()

    def read():
        with usage.reading():
            reading.set()
            assert release.wait(60)
            order.append("read")

    def change():
        with usage.changing():
            order.append("changed")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read)
        assert reading.wait(60)
        second = pool.submit(change)
        while not usage._changing:
            threading.Event().wait(0.001)
        assert order == []
        release.set()
        first.result()
        second.result()
    assert order == ["read", "changed"]
    with usage.reading():
        pass


def test_learning_that_is_interrupted_while_it_waits_leaves_the_learner_usable(monkeypatch):
    usage = Usage()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(usage._condition, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), usage.changing():
            pass
    with usage.reading():
        pass
    with usage.changing():
        pass


def test_a_failed_task_leaves_the_learner_usable(learner):
    with pytest.raises(UserError):
        learner.learn("bad", (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)))
    assert answers(learner, None)


CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
from test_usage import GPM, Learner, QUICK, learn, trunk
learner = Learner.load(sys.argv[1], trunk())
for task in (1, 2, 3):
    learn(learner, task, checkpoint_dir=sys.argv[1])
"""


def test_a_process_serves_while_another_learns(tmp_path, request):
    made = Learner(trunk(), GPM(), training=QUICK)
    learn(made, 0, checkpoint_dir=tmp_path)
    serving = Learner.load(tmp_path, trunk()).frozen()
    assert not serving.changed()
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(request.path.parent)]
    with subprocess.Popen(command) as child:
        while len(serving.tasks) < 4:
            assert answers(serving, None)
            if serving.changed():
                serving = Learner.load(tmp_path, trunk()).frozen()
            assert child.poll() in (None, 0)
            time.sleep(0.05)
    assert child.returncode == 0
    assert [task.name for task in serving.tasks] == ["t0", "t1", "t2", "t3"]
    assert made.changed()
    assert not serving.changed()
