"""Output sensitivities by hand and one sample at a time."""

import pytest
import torch

from classgrad.errors import UserError
from classgrad.methods import MAS
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from oracles.sensitivities import later_loss, linear_net, logits_apart, one_by_one, task_of
from streams import blobs

STREAM = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=6)
QUICK = {"epochs": 4, "batch_size": 6, "learning_rate": 0.05, "warmup": 0, "width": 5}


def test_the_sensitivity_of_two_samples_by_hand():
    """∂||Wx||² / ∂W = 2 (Wx) xᵀ. For x = (½, 1): Wx = (½, -½), so ((½, 1), (-½, -1)).

    For x = (1, 0): Wx = (1, 1), so ((2, 0), (2, 0)). The gradient of both together would give
    (0.75, 0.5) in the second row.
    """
    net = linear_net([[1.0, 0.0], [1.0, -1.0]])
    wanted = torch.tensor([[1.25, 0.5], [1.25, 0.5]], dtype=torch.float64)
    method = MAS()
    for count in (1, 2):
        for labels in ([0, 1], [1, 0]):  # which play no part
            once = MAS()
            once.end_task(net, task_of([[0.5, 1.0], [1.0, 0.0]], labels), torch.Generator())
            assert torch.allclose(once.importance["weight"], wanted, rtol=1e-12, atol=0)
        method.end_task(net, task_of([[0.5, 1.0], [1.0, 0.0]], [0, 1]), torch.Generator())
        assert torch.allclose(method.importance["weight"], count * wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": "shared"},
        {"batch_norm": True},
        {"batch_norm": True, "norm": "stored", "affine": "task"},
        {"optimizer": "adamw", "learning_rate": 0.01},
    ],
    ids=str,
)
def test_importance_adds_up_over_tasks_and_the_anchor_is_the_latest(options):
    running = Run(make_plan(STREAM, MAS(strength=0.1), values={**QUICK, **options}), STREAM)
    running.net.double()
    total = {}
    for number, task in enumerate(STREAM):
        running.learn(number)
        lengths = logits_apart(running.net, task).square().sum(1)
        sums = one_by_one(running.net.protected(), lengths, torch.abs)
        shared = running.net.shared_parameters()
        for name, parameter in shared.items():
            total[name] = total.get(name, 0) + sums[name] / len(task.train)
            assert torch.equal(running.method.anchor[name], parameter.detach())
        assert running.method.importance.keys() == shared.keys()
        for name, value in running.method.importance.items():
            assert torch.allclose(value, total[name], rtol=1e-9, atol=1e-14), name


def test_forgets_less_than_without_it():
    stream = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=16, seed=2)
    assert later_loss(stream, MAS(strength=0.1)) < 0.7 * later_loss(stream, MAS(strength=0))


@pytest.mark.parametrize("values", [{"samples": 0}, {"merge": "sum"}, {"xi": 1}])
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError) as error:
        MAS(**values)
    assert "\n" not in str(error.value)
