"""Merged weights by hand and over whole tasks; tasks are learnt from unmerged ones."""

import pytest
import torch
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.methods import IMM, Finetune
from classgrad.methods.penalty import imm as module
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.loop import fit
from oracles.sensitivities import later_loss, linear_net, logits_apart, one_by_one, task_of
from streams import blobs, step_of

STREAM = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=6)
QUICK = {"epochs": 4, "batch_size": 6, "learning_rate": 0.05, "warmup": 0, "width": 5}
TASK = task_of([[0.5, 1.0, 0.2], [1.0, 0.0, 0.3]], [0, 0])
WEIGHTS = [[1.0, 2.0, 3.0], [3.0, 6.0, 5.0], [9.0, 9.0, 0.0]]
FISHERS = [[1.0, 0.0, 0.0], [3.0, 0.0, 2.0], [0.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("merge", "wanted"),
    [
        ("mean", [[1, 2, 3], [2, 4, 4], [13 / 3, 17 / 3, 8 / 3]]),
        ("mode", [[1, 2, 3], [2.5, 4, 5], [2.5, 9, 2.5]]),
    ],
)
def test_three_tasks_by_hand(merge, wanted, monkeypatch):
    """Mode: (1·1 + 3·3)/4; the mean (2 + 6)/2 while F is 0; then (1·9)/1 and (2·5 + 2·0)/4."""
    method, net = IMM(merge=merge), linear_net([[0.0, 0.0, 0.0]])
    for weights, f, merged in zip(WEIGHTS, FISHERS, wanted, strict=True):
        precision = {"weight": torch.tensor([f], dtype=torch.float64)}
        monkeypatch.setattr(module, "fisher", lambda *_, result=precision: result)
        method.begin_task(net, TASK)
        with torch.no_grad():
            net.trunk.weight.copy_(torch.tensor([weights]))
        method.end_task(net, TASK, torch.Generator())
        assert net.trunk.weight.flatten().tolist() == pytest.approx(merged, abs=1e-12)
        method.begin_task(net, TASK)
        assert net.trunk.weight.flatten().tolist() == weights


def test_tiny_precisions_still_average(monkeypatch):
    """F around the smallest float: F θ would be lost, a share of F is not."""
    method, net = IMM(merge="mode"), linear_net([[0.0, 0.0, 0.0]]).float()
    precision = {"weight": torch.full((1, 3), 1e-44)}
    monkeypatch.setattr(module, "fisher", lambda *_: precision)
    for value in (0.01, 0.03):
        with torch.no_grad():
            net.trunk.weight.fill_(value)
        method.end_task(net, TASK, torch.Generator())
    assert net.trunk.weight.flatten().tolist() == pytest.approx([0.02] * 3, rel=0.01)


OPTIONS = [
    {},
    {"heads": "shared"},
    {"batch_norm": True},
    {"batch_norm": True, "norm": "stored", "affine": "task"},
    {"optimizer": "adam", "learning_rate": 0.01},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("merge", ["mean", "mode"])
def test_the_network_has_the_average_of_the_weights_each_task_ended_with(merge, options):
    method = IMM(merge=merge, strength=0.01)
    running = Run(make_plan(STREAM, method, values={**QUICK, **options}), STREAM)
    net, method = running.net.double(), running.method
    own, fishers = [], []
    for number, task in enumerate(STREAM):
        if number:
            net.add_task(task.classes)
        method.begin_task(net, task)
        if number:  # learning continues where the last task ended, not from the average
            for name, p in net.shared_parameters().items():
                assert torch.equal(p, own[-1][name])
        fit(net, method, [task], running.plan.training, seed=1)
        own.append({n: p.detach().clone() for n, p in net.shared_parameters().items()})
        others = [
            p.detach().clone() for p in net.parameters() if not known(p, net.shared_parameters())
        ]
        logits = logits_apart(net, task)
        entropies = functional.cross_entropy(logits, task.train.labels, reduction="none")
        fishers.append(one_by_one(net.protected(), entropies, torch.square))
        method.end_task(net, task, torch.Generator().manual_seed(0))
        left = [p for p in net.parameters() if not known(p, net.shared_parameters())]
        assert all(torch.equal(a, b) for a, b in zip(others, left, strict=True))
        for name, p in net.shared_parameters().items():
            shares = [f[name] if merge == "mode" else torch.ones_like(p) for f in fishers]
            total = sum(shares)
            weighted = sum(s * w[name] for s, w in zip(shares, own, strict=True)) / total
            mean = sum(w[name] for w in own) / len(own)
            wanted = torch.where(total > 0, weighted, mean)
            assert torch.allclose(p, wanted, rtol=1e-8, atol=1e-12), name
    for name, p in net.shared_parameters().items():
        assert not torch.equal(own[0][name], p), name


def known(parameter, named):
    return any(parameter is p for p in named.values())


def test_the_transfer_penalty_is_strength_times_the_squared_distance():
    method, net = IMM(strength=0.3), linear_net([[1.0, 2.0, 3.0]])
    method.end_task(net, TASK, torch.Generator())
    method.begin_task(net, TASK)
    with torch.no_grad():
        net.trunk.weight.add_(1.0)
    optimizer = torch.optim.SGD(net.trunk.parameters(), lr=0.5)
    method.after_step(net, step_of(STREAM[0], optimizer))
    h = 0.5 * 2 * 0.3
    moved = [value + 1 / (1 + h) for value in (1.0, 2.0, 3.0)]
    assert net.trunk.weight.flatten().tolist() == pytest.approx(moved, abs=1e-12)


def test_stored_statistics_stay_those_of_the_tasks_own_weights():
    options = {"batch_norm": True, "norm": "stored"}
    running = Run(make_plan(STREAM, IMM(), values={**QUICK, **options}), STREAM)
    running.learn(0)
    net, method = running.net, running.method
    net.add_task(3)
    method.begin_task(net, STREAM[1])
    fit(net, method, [STREAM[1]], running.plan.training, seed=1)
    before = {name: value.clone() for name, value in net.named_buffers()}
    method.end_task(net, STREAM[1], torch.Generator())
    assert len(before) == 8
    assert all(torch.equal(before[name], value) for name, value in net.named_buffers())


def test_forgets_less_than_without_it():
    stream = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=16, seed=2)
    assert later_loss(stream, IMM()) < 0.7 * later_loss(stream, Finetune())


@pytest.mark.parametrize("values", [{"samples": 0}, {"merge": "sum"}, {"alpha": 0.5}])
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError) as error:
        IMM(**values)
    assert "\n" not in str(error.value)
