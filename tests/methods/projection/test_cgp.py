"""Bases, groups and contrastive loss of CGP against loops written from its equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from classgrad import networks
from classgrad.data.augmix import augmix, crop, flip
from classgrad.errors import UserError
from classgrad.methods import CGP, Step
from classgrad.methods.projection.cgp import contrastive
from classgrad.methods.projection.refining import READINGS
from classgrad.networks import Network
from classgrad.tasks import Split, Task, TaskStream
from oracles.bases import (
    Case,
    LayerMemory,
    basis_of,
    held,
    learnt,
    projector,
    random_case,
)
from oracles.contrast import contrastive_by_loops, supervised_by_loops
from oracles.models import normal
from streams import step_of

seeds = st.integers(0, 2**32 - 1)


def cgp(case: Case, **values: object) -> CGP:
    return CGP(
        **{
            "epsilon": case.epsilon,
            "energy_step": case.step,
            "eta": case.eta,
            "correct_only": False,
            **values,
        }
    )


@pytest.mark.parametrize("rule", ["alg1", "joint"])
def test_the_rules_of_version_0_1_are_settings_of_pooled(rule: str) -> None:
    """Given by a user, and read from a file."""
    count = "capped" if rule == "alg1" else "joint"
    for method in (CGP(rule=rule), CGP(**CGP.migrate({"rule": rule, "energy": 0.9}))):
        assert method.refining() == replace(READINGS["pooled"], count=count)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("official", "rule=official is gone; it was not the released rule: give reading=released"),
        ("gpm", "rule=gpm is gone; take the method gpm"),
        ("a\nb", r"rule='a\nb' is gone; give a reading instead"),
    ],
)
def test_rules_that_are_gone_are_refused_in_a_line_that_says_what_to_give(
    rule: str, message: str
) -> None:
    for read in (lambda: CGP(rule=rule), lambda: CGP.migrate({"rule": rule})):
        with pytest.raises(UserError) as refused:
            read()
        assert str(refused.value) == message


@settings(deadline=None, max_examples=40)
@given(seed=seeds, epsilon=st.floats(0.3, 0.9999))
def test_every_class_holds_its_share_after_plain_updates(seed: int, epsilon: float) -> None:
    case = random_case(seed)
    basis = basis_of(learnt(cgp(case, eta=1.0, epsilon=epsilon), case.tasks))
    for task, classes in enumerate(case.tasks):
        share = min(epsilon + task * case.step, max(epsilon, 0.999))
        for c in classes:
            assert held(c, basis) >= share - 1e-12


def test_epsilon_one_protects_all_that_the_classes_span() -> None:
    rng = np.random.default_rng(1)
    common = rng.standard_normal((20, 4))
    tasks = [[common @ rng.standard_normal((4, 9)) for _ in range(2)] for _ in range(2)]
    tasks[1].append(rng.standard_normal((20, 3)))
    for reading in READINGS:
        method = CGP(epsilon=1.0, eta=1.0, reading=reading, against="all", correct_only=False)
        basis = basis_of(learnt(method, tasks))
        assert basis.shape[1] == 7
        assert all(held(c, basis) > 1 - 1e-12 for classes in tasks for c in classes)


def test_opposite_classes_do_not_share_a_group() -> None:
    c = np.random.default_rng(0).standard_normal((6, 5)) + 3
    groups = learnt(CGP(correct_only=False), [[c, -c]]).method.state_dict()["groups"]["0"]
    assert groups["group_of"] == [0, 1]


def test_a_class_that_adds_nothing_is_still_remembered() -> None:
    c = np.random.default_rng(0).standard_normal((6, 5)) + 3
    once = learnt(CGP(correct_only=False, energy_step=0), [[c]])
    twice = learnt(CGP(correct_only=False, energy_step=0), [[c], [2 * c]])
    groups = twice.method.state_dict()["groups"]["0"]
    assert np.array_equal(basis_of(once), basis_of(twice))
    assert groups["group_of"] == [0, 0]
    assert groups["cosines"] == pytest.approx([1, 1], abs=1e-6)
    assert groups["prototypes"].shape == (2, 6)


def test_the_first_class_of_a_group_has_cosine_one_and_others_that_with_the_nearest() -> None:
    rng = np.random.default_rng(0)
    tasks = [[rng.standard_normal((6, 5)) + 1 for _ in range(3)]]
    groups = learnt(CGP(correct_only=False, eta=-1), tasks).method.state_dict()["groups"]["0"]
    means = [c.mean(axis=1) / np.linalg.norm(c.mean(axis=1)) for c in tasks[0]]
    nearest = max(means[2] @ means[0], means[2] @ means[1])
    assert groups["cosines"] == pytest.approx([1, means[1] @ means[0], nearest], abs=1e-6)


def task_of_two_classes(number: int, shape: tuple[int, ...] = (1, 4, 4)) -> Task:
    rng = torch.Generator().manual_seed(number)
    labels = torch.arange(30) % 2
    images = torch.rand(30, *shape, generator=rng, dtype=torch.float64)
    train = Split(images, labels)
    return Task(number, f"task {number}", ("a", "b"), train, Split(images[:2], labels[:2]))


def wrapped(method: CGP, tasks: list[Task]) -> Network:
    """Return a network with a head for each task, under the guard of a method."""
    net = networks.build("mlp", (1, 4, 4), width=12).double()
    for task in tasks:
        net.add_task(task.classes)
    return method.wrap(net, TaskStream("two", tasks, [task.valid for task in tasks]), seed=1)


@pytest.mark.parametrize("correct_only", [True, False])
def test_a_network_collects_with_the_head_of_the_current_task(correct_only: bool) -> None:
    tasks = [task_of_two_classes(number) for number in range(2)]
    method = CGP(epsilon=0.95, eta=0.98, correct_only=correct_only, reading="pooled")
    net = wrapped(method, tasks)
    with torch.no_grad():  # heads without the common direction of all inputs are right now and then
        for head, task in zip(net.heads, tasks, strict=True):
            mean = nn.functional.normalize(net.embed(task.train.images, task.id).mean(0), dim=0)
            head.weight -= torch.outer(head.weight @ mean, mean)
    oracles = {"fc1": LayerMemory(16), "fc2": LayerMemory(12)}
    for task in tasks:
        method.end_task(net, task, torch.Generator().manual_seed(0))
        x = task.train.images.flatten(1)
        hidden = (x @ net.trunk.fc1.weight.T).relu()
        right = net(task.train.images, task.id).argmax(1) == task.train.labels
        kept = [
            ((task.train.labels == c) & (right | (not correct_only))).nonzero().flatten()
            for c in range(2)
        ]
        assert 0 < min(map(len, kept)) <= max(map(len, kept)) <= 15 - 3 * correct_only
        for name, rows in (("fc1", x), ("fc2", hidden)):
            classes = [rows[index].detach().numpy().T for index in kept]
            if task.id == 0:
                oracles[name].first_task(classes, 0.95, 0.98)
            else:
                oracles[name].later_task(classes, 0.953, 0.98, "capped")
    for name, oracle in oracles.items():
        basis = method.subspaces[name].basis.numpy()
        assert basis.shape == oracle.basis.shape
        assert np.abs(projector(basis) - projector(oracle.basis)).max() < 1e-9


@pytest.mark.parametrize("reading", READINGS)
def test_a_method_continues_from_its_state_as_if_it_had_not_stopped(reading: str) -> None:
    tasks = [task_of_two_classes(number) for number in range(3)]
    rng = torch.Generator().manual_seed(0)
    method = CGP(correct_only=False, reading=reading)
    net = wrapped(method, tasks)
    for task in tasks[:2]:
        method.end_task(net, task, rng)
    resumed = CGP(correct_only=False, reading=reading)
    resumed.load_state_dict(method.state_dict(), net)
    projected = []
    for each in (method, resumed):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        each.projector.project_gradients()
        projected.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    assert all(map(torch.equal, *projected))
    assert not all((gradient == 1).all() for gradient in projected[0])
    for each in (method, resumed):
        each.end_task(net, tasks[2], torch.Generator().manual_seed(1))
    assert method.layer_ranks() == resumed.layer_ranks()
    assert method.memory_bytes() == resumed.memory_bytes()
    before, after = method.state_dict(), resumed.state_dict()
    assert before["groups"].keys() == after["groups"].keys()
    for name in before["bases"]:
        assert torch.equal(before["bases"][name], after["bases"][name])
        assert before["groups"][name]["group_of"] == after["groups"][name]["group_of"]


def test_the_loss_is_cross_entropy_plus_lambda_times_the_contrast_with_new_copies() -> None:
    task = task_of_two_classes(0, (1, 8, 8))
    net = networks.build("mlp", (1, 8, 8), width=12).double()
    net.add_task(2)
    images = task.train.images[:6]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> Step:
        return step_of(task, optimizer, torch.arange(6), seed=5)

    entropy = nn.functional.cross_entropy(net(images, 0), task.train.labels[:6])
    copies = augmix(images, severity=2.0, generator=torch.Generator().manual_seed(5))
    embeddings = [net.embed(x, 0).detach().numpy() for x in (images, copies)]
    contrast = contrastive_by_loops(*embeddings, temperature=0.3)
    loss = CGP(**{"lambda": 0.4, "mu": 0.3, "severity": 2.0}).loss(net, step())
    assert loss.item() == pytest.approx(entropy.item() + 0.4 * contrast, rel=1e-12)
    assert CGP(contrast=0).loss(net, step()).item() == pytest.approx(entropy.item(), rel=1e-12)


def test_copies_can_be_cropped_flipped_and_of_all_operations_and_be_classified() -> None:
    task = task_of_two_classes(0, (1, 8, 8))
    net = networks.build("mlp", (1, 8, 8), width=12).double()
    net.add_task(2)
    images, labels = task.train.images[:6], task.train.labels[:6]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = step_of(task, optimizer, torch.arange(6), seed=5)
    rng = torch.Generator().manual_seed(5)
    copies = crop(images, generator=rng)
    copies = flip(copies, generator=rng)
    copies = augmix(copies, severity=1, operations="all", generator=rng)
    released = {"operations": "all", "severity": 1, "copy_crop": True, "copy_flip": True}
    method = CGP(contrast=0, classify_copies=True, **released)
    entropies = [nn.functional.cross_entropy(net(x, 0), labels) for x in (images, copies)]
    assert method.loss(net, step).item() == pytest.approx(sum(entropies).item() / 2, rel=1e-12)
    step = step_of(task, optimizer, torch.arange(6), seed=5)
    embeddings = [net.embed(x, 0).detach().numpy() for x in (images, copies)]
    contrast = supervised_by_loops(*embeddings, labels.numpy(), 0.5)
    method = CGP(contrast=0.3, positives="class", **released)
    expected = entropies[0].item() + 0.3 * contrast
    assert method.loss(net, step).item() == pytest.approx(expected, rel=1e-12)


def test_images_out_of_range_are_refused_before_a_task_is_learnt() -> None:
    task = task_of_two_classes(0)
    bad = replace(task, train=Split(task.train.images.clone(), task.train.labels))
    bad.train.images[-1, 0, 0, 0] = 1.25
    method, without = CGP(), CGP(contrast=0)
    net = wrapped(method, [task])
    method.begin_task(net, task)
    with pytest.raises(UserError, match=r"images range from .* to 1.25: scale them"):
        method.begin_task(net, bad)
    without.begin_task(wrapped(without, [task]), bad)


embeddings = st.tuples(st.integers(1, 7), st.integers(1, 6), seeds)


def pair(sizes: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    count, width, seed = sizes
    return normal(2, count, width, seed=seed).unbind()


@settings(deadline=None, max_examples=50)
@given(sizes=embeddings, temperature=st.floats(0.05, 5))
def test_the_contrastive_loss_equals_the_double_loop(
    sizes: tuple[int, int, int], temperature: float
) -> None:
    z, copies = pair(sizes)
    expected = contrastive_by_loops(z.numpy(), copies.numpy(), temperature)
    assert contrastive(z, copies, temperature).item() == pytest.approx(
        expected, rel=1e-10, abs=1e-12
    )


@settings(deadline=None, max_examples=40)
@given(sizes=embeddings, temperature=st.floats(0.05, 5), classes=st.integers(1, 3))
def test_the_supervised_contrast_equals_the_double_loop(
    sizes: tuple[int, int, int], temperature: float, classes: int
) -> None:
    z, copies = pair(sizes)
    labels = torch.arange(len(z)) % classes
    expected = supervised_by_loops(z.numpy(), copies.numpy(), labels.numpy(), temperature)
    result = contrastive(z, copies, temperature, labels=labels)
    assert result.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    z.requires_grad_()
    contrastive(z, copies, temperature, labels=labels).backward()
    assert z.grad.isfinite().all()


@settings(deadline=None, max_examples=10)
@given(sizes=st.tuples(st.integers(2, 4), st.integers(2, 4), seeds))
def test_the_gradient_of_the_contrastive_loss_is_that_of_finite_differences(
    sizes: tuple[int, int, int],
) -> None:
    z, copies = (part.requires_grad_() for part in pair(sizes))
    assert torch.autograd.gradcheck(lambda a, b: contrastive(a, b, 0.5), (z, copies))


@settings(deadline=None, max_examples=25)
@given(sizes=embeddings, length=st.floats(0.01, 100))
def test_the_contrastive_loss_ignores_length_rotation_and_order(
    sizes: tuple[int, int, int], length: float
) -> None:
    z, copies = pair(sizes)
    value = contrastive(z, copies, 0.5).item()
    turn = torch.linalg.qr(pair((z.shape[1], z.shape[1], sizes[2]))[0]).Q
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(sizes[2]))
    for a, b in ((length * z, copies), (z, length * copies), (z @ turn, copies @ turn)):
        assert contrastive(a, b, 0.5).item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    shuffled = contrastive(z[order], copies[order], 0.5)
    assert shuffled.item() == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_the_contrastive_loss_of_one_image_is_zero_and_of_equal_ones_the_log_of_their_number() -> (
    None
):
    one = normal(1, 4)
    assert contrastive(one, -one, 0.5).item() == pytest.approx(0, abs=1e-6)
    equal = torch.ones(5, 4)
    assert contrastive(equal, equal, 0.5).item() == pytest.approx(np.log(9), rel=1e-6)
    assert contrastive(torch.eye(4), torch.eye(4), 0.01).item() == pytest.approx(0, abs=1e-6)
