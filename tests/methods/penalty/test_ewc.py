"""Fisher information by hand and one sample at a time, and how tasks are merged."""

import pytest
import torch
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.methods import EWC
from classgrad.methods.penalty.ewc import fisher
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from oracles.sensitivities import later_loss, linear_net, logits_apart, one_by_one, task_of
from streams import blobs

STREAM = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=6)
QUICK = {"epochs": 4, "batch_size": 6, "learning_rate": 0.05, "warmup": 0, "width": 5}
TWO = task_of([[0.5, 1.0], [1.0, 0.0]], [0, 1])


def test_the_fisher_of_two_samples_by_hand():
    """W = 0 gives p = (½, ½); ∂ log p_y / ∂W_c = (1[y = c] - ½) x: half of x, up to the sign.

    Squares: (0.0625, 0.25) and (0.25, 0) in both rows. The squared mean gradient would be
    (0.015625, 0.0625).
    """
    net = linear_net([[0.0, 0.0], [0.0, 0.0]])
    wanted = torch.tensor([[0.15625, 0.125], [0.15625, 0.125]], dtype=torch.float64)
    for sampled in (False, True):  # with p = ½ either label gives the same squares
        result = fisher(net, TWO, 100, torch.Generator(), sampled=sampled)
        assert torch.allclose(result["weight"], wanted, rtol=1e-12, atol=0)


def test_sampled_labels_give_the_expectation_over_the_prediction():
    net = linear_net([[2.0, 0.0], [0.0, 1.0]])
    many = task_of([[0.5, 1.0], [1.0, 0.0]] * 4000, [1, 1] * 3999 + [0, 1])
    result = fisher(net, many, 10_000, torch.Generator().manual_seed(0), sampled=True)["weight"]
    wanted = torch.zeros(2, 2, dtype=torch.float64)
    for x in (torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.0])):
        p = (net.trunk.weight.detach() @ x.double()).softmax(0)
        for label in (0, 1):
            error = functional.one_hot(torch.tensor(label), 2) - p
            wanted += p[label] * torch.outer(error, x.double()).square() / 2
    assert torch.allclose(result, wanted, rtol=0.06, atol=0)
    by_label = fisher(net, many, 10_000, torch.Generator())["weight"]
    assert not torch.allclose(by_label, wanted, rtol=0.2, atol=0)


def oracle(net, task):
    """The empirical Fisher of a task, sample by sample."""
    entropies = functional.cross_entropy(
        logits_apart(net, task), task.train.labels, reduction="none"
    )
    sums = one_by_one(net.protected(), entropies, torch.square)
    return {name: sums[name] / len(task.train) for name in net.shared_parameters()}


def learnt(options, **values):
    """Run three tasks in float64; return the run, and F and weights after each by the oracle."""
    running = Run(make_plan(STREAM, EWC(**values), values={**QUICK, **options}), STREAM)
    running.net.double()
    fishers, weights = [], []
    for number, task in enumerate(STREAM):
        running.learn(number)
        fishers.append(oracle(running.net, task))
        shared = running.net.shared_parameters()
        weights.append({name: p.detach().clone() for name, p in shared.items()})
    return running, fishers, weights


OPTIONS = [
    {},
    {"heads": "shared"},
    {"batch_norm": True},
    {"batch_norm": True, "norm": "stored", "affine": "task"},
    {"optimizer": "adam", "learning_rate": 0.01},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_average_weighs_all_tasks_alike_and_anchors_at_the_latest_weights(options):
    running, fishers, weights = learnt(options, strength=5.0)
    for name, value in running.method.importance.items():
        wanted = sum(f[name] for f in fishers) / 3
        assert torch.allclose(value, wanted, rtol=1e-9, atol=1e-15)
        assert wanted.any()
        assert torch.equal(running.method.anchor[name], weights[-1][name])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sum_is_one_penalty_for_each_task(options):
    running, fishers, weights = learnt(options, strength=5.0, merge="sum")
    slopes, sizes = [], []
    for name, importance in running.method.importance.items():
        at = torch.full_like(importance, 0.1)
        slope = sum(f[name] * (at - w[name]) for f, w in zip(fishers, weights, strict=True))
        assert torch.allclose(importance * (at - running.method.anchor[name]), slope, atol=1e-12)
        slopes.append(float(slope.norm()))
        sizes.append(float((importance * (at - weights[-1][name]) - slope).norm()))
        assert running.method.anchor[name].isfinite().all()
    assert max(sizes) > 1e-3 * max(slopes)  # the latest weights would not do


def test_a_weight_no_sample_depends_on_stays_free_of_anchors():
    method = EWC(merge="sum", strength=1e6)
    net = linear_net([[0.3, 0.1], [0.2, 0.4]])
    blind = task_of([[0.5, 0.0], [1.0, 0.0]], [0, 1])
    for _ in range(2):
        method.end_task(net, blind, torch.Generator())
    assert method.importance["weight"][:, 1].tolist() == [0, 0]
    assert method.anchor["weight"].isfinite().all()


def test_samples_bound_the_work():
    net = linear_net([[0.3, 0.1], [0.2, 0.4]])
    alone = [
        fisher(net, task_of([x], [y]), 5, torch.Generator())["weight"]
        for x, y in (([0.5, 1.0], 0),)
    ]
    drawn = [
        fisher(net, TWO, 1, torch.Generator().manual_seed(seed))["weight"] for seed in range(8)
    ]
    hits = [torch.allclose(d, alone[0]) for d in drawn]
    assert any(hits)
    assert not all(hits)


def test_forgets_less_than_without_it():
    stream = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=16, seed=2)
    assert later_loss(stream, EWC(strength=1000)) < 0.7 * later_loss(stream, EWC(strength=0))


@pytest.mark.parametrize(
    "values", [{"samples": 0}, {"fisher": "true"}, {"merge": "mean"}, {"mu": 1}]
)
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError) as error:
        EWC(**values)
    assert "\n" not in str(error.value)
