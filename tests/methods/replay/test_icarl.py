"""iCaRL against its equations: exemplars, loss, means."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from classgrad.errors import UserError
from classgrad.methods import ICaRL
from classgrad.methods.replay import icarl
from classgrad.methods.replay.icarl import PER_TASK, NearestMeans
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, TaskStream
from oracles.distilled import (
    binary,
    embedding,
    greedy,
    inputs,
    interrupted,
    learning,
    outputs,
    sigmoid,
    weights,
)
from streams import blobs, step_of


def turned(number):
    """A transform of its own for every task."""
    return lambda images: images.roll(number, -1) - 0.1 * number


def own_transforms(stream):
    tasks = [replace(task, transform=turned(task.id)) for task in stream]
    return TaskStream(stream.name, tasks, [stream.test(t.id) for t in tasks])


STREAM = own_transforms(blobs())
IMAGES = blobs(tasks=3, classes=2, shape=(3, 20, 20), per_class=6)
OWN_NORMS = {"batch_norm": True, "norm": "stored", "affine": "task"}
KINDS = [
    ("mlp", {}),
    ("mlp", {"heads": "shared"}),
    ("mlp", {"batch_norm": True, "norm": "batch"}),
    ("mlp", {"batch_norm": True, "norm": "batch", "affine": "task"}),
    ("mlp", {**OWN_NORMS, "dropout": 0.3}),
    ("mlp", {**OWN_NORMS, "heads": "shared"}),
    ("resnet18", {"width": 2, "norm": "stored"}),
]


def learning_task(
    number, network="mlp", memory=20, memory_batch=24, targets="step", bn_samples=32, **values
):
    stream = STREAM if network == "mlp" else IMAGES
    method = ICaRL(memory=memory, memory_batch=memory_batch, targets=targets, bn_samples=bn_samples)
    running = learning(stream, method, number, network, **values)
    return running, stream[number]


def moved(net, by=0.05):
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(by * torch.randn(p.shape, generator=rng, dtype=p.dtype))


def seen(stream, task, images):
    """What a network sees of images kept of a task."""
    return stream[task].transform(images.double() / 255)


def unit(rows):
    """Rows of length 1; a row of zeros stays one."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)


def test_the_budget_is_kept_after_every_task_and_lists_are_only_cut():
    running = learning(STREAM, ICaRL(memory=20), 0)
    before = []
    for number, share in enumerate([20 // 3, 20 // 6, 20 // 9]):
        if number:
            running.net.add_task(3)
            running.method.begin_task(running.net, STREAM[number])
        running.method.end_task(running.net, STREAM[number], torch.Generator().manual_seed(0))
        kept = running.method.exemplars
        assert sum(len(split) for split in kept) <= 20
        for split in kept:
            assert torch.bincount(split.labels).tolist() == [share] * 3
        for old, now in zip(before, kept, strict=False):
            for label in range(3):
                was = old.images[old.labels == label][:share]
                assert torch.equal(now.images[now.labels == label], was)
        before = kept
        assert kept[0].images.dtype == torch.uint8


def test_exemplars_are_herded_by_embeddings_of_length_1():
    running, _ = learning_task(1, memory=60)
    task, kept = STREAM[0], running.method.exemplars[0]
    z = unit(embedding(weights(running.net), inputs(task).numpy()))
    for label in range(3):
        own = (task.train.labels == label).nonzero().flatten()
        chosen = own[greedy(z[own], 60 // 3)]
        assert torch.equal(kept.images[kept.labels == label], task.train.images[chosen])


def test_small_classes_give_all_they_have():
    running, _ = learning_task(1, memory=2000)
    kept = running.method.exemplars[0]
    assert torch.bincount(kept.labels).tolist() == [16] * 3
    assert len(kept.images.unique(dim=0)) == 48


@pytest.mark.parametrize("memory_batch", [2, 24, 40])
def test_the_loss_is_that_of_the_equations(memory_batch):
    running, task = learning_task(2, memory_batch=memory_batch)
    method, net, before = running.method, running.net, weights(running.net)
    moved(net)
    now, index = weights(net), torch.tensor([40, 3, 17, 5, 29])
    step = step_of(task, torch.optim.SGD(net.parameters(), lr=0.1), index, seed=3)

    def of_sample(x, labels):
        """The new outputs' part in full; the old ones' part less what it was before."""
        total = sum(
            binary(target, logit)
            for target, logit in zip(labels, outputs(now, x, 2)[0], strict=True)
        )
        for old in range(2):
            for was, logit in zip(outputs(before, x, old)[0], outputs(now, x, old)[0], strict=True):
                total += binary(sigmoid(was), logit) - binary(sigmoid(was), was)
        return total

    total, count = 0.0, 0
    for x, label in zip(inputs(task, index).numpy(), task.train.labels[index], strict=True):
        total += of_sample(x[None], [float(label == y) for y in range(3)])
        count += 1
    drawn = list(method.draw(torch.Generator().manual_seed(3)))
    assert sum(len(rows) for _, rows, _ in drawn) == memory_batch
    for old, rows, weight in drawn:
        for x in seen(STREAM, old, method.exemplars[old].images[rows]).numpy():
            total += weight * of_sample(x[None], [0.0] * 3)
            count += 1
    assert method.loss(net, step).item() == pytest.approx(total / count, rel=1e-12)


def test_the_first_task_has_sigmoids_of_its_own_head():
    running, task = learning_task(0)
    step = step_of(task, torch.optim.SGD(running.net.parameters(), lr=0.1), torch.tensor([40, 3]))
    logits = outputs(weights(running.net), step.x.numpy(), 0)
    labels = np.eye(3)[step.y.numpy()]
    wanted = sum(binary(y, g) for y, g in zip(labels.flatten(), logits.flatten(), strict=True))
    assert running.method.loss(running.net, step).item() == pytest.approx(wanted / 2, rel=1e-12)


def test_draws_are_of_few_tasks_and_expect_the_mean_over_all_exemplars():
    method = ICaRL(memory_batch=2 * PER_TASK)
    sizes = [3, 9, 30, 6]
    values = [torch.arange(n, dtype=torch.float64) + 10 * k for k, n in enumerate(sizes)]
    method._exemplars = [Split(v[:, None], torch.zeros(len(v)).long()) for v in values]
    rng, result = torch.Generator().manual_seed(0), []
    for _ in range(4000):
        drawn = list(method.draw(rng))
        assert len({task for task, _, _ in drawn}) == 2
        assert all(len(rows) == PER_TASK for _, rows, _ in drawn)
        result.append(sum(float(w * values[k][rows].mean()) for k, rows, w in drawn) / 2)
    error = np.std(result) / np.sqrt(len(result))
    wanted = float(torch.cat(values).mean())
    assert abs(np.mean(result) - wanted) < 4 * error < 0.05 * wanted


@pytest.mark.parametrize(("network", "options"), KINDS)
def test_what_is_recorded_is_what_the_heads_said(network, options):
    running, task = learning_task(2, network, targets="task", **options)
    stream = STREAM if network == "mlp" else IMAGES
    net, state = running.net.eval(), running.method.state_dict()

    def heads(x, tasks):
        return torch.cat([net.heads[old](net.embed(x, old)) for old in tasks], 1)

    for old, (part, result) in enumerate(
        zip(state["exemplars"], state["exemplar_answers"], strict=True)
    ):
        asked = [old] if net.shared_head else range(2)
        wanted = heads(seen(stream, old, part["images"]), asked)
        assert torch.allclose(result, wanted, atol=1e-12)
    if net.shared_head:
        assert state["answers"] is None
    else:
        assert torch.allclose(state["answers"], heads(inputs(task), range(2)), atol=1e-12)


@pytest.mark.parametrize("heads", ["task", "shared"])
@pytest.mark.parametrize("norm", [None, "batch", "stored"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_at_the_start_old_outputs_pull_nothing_whatever_batch_and_mask(heads, norm, dropout):
    """The rest of the loss is of labels and does not reach the old heads."""
    options = {"batch_norm": True, "norm": norm} if norm else {}
    running, task = learning_task(2, heads=heads, dropout=dropout, **options)
    net = running.net
    pulls = []
    loss_of_drift = icarl.drift

    def recorded(logits, earlier):
        pulls.append(loss_of_drift(logits, earlier).item())
        return loss_of_drift(logits, earlier)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(icarl, "drift", recorded)
        for number in range(3):
            index = torch.randperm(48, generator=torch.Generator().manual_seed(number))[:12]
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            running.method.loss(net, step_of(task, optimizer, index, seed=number))
        assert len(pulls) >= 3
        assert max(abs(pull) for pull in pulls) < 1e-12
        moved(net)
        running.method.loss(net, step_of(task, optimizer, index))
    assert pulls[-1] > 1e-6


@pytest.mark.parametrize(("norm", "sizes"), [(True, [32]), (False, [16])])
def test_a_pass_through_batch_norm_has_at_least_32_exemplars(norm, sizes):
    running, _ = learning_task(2, memory_batch=16, batch_norm=norm)
    drawn = running.method.draw(torch.Generator().manual_seed(0))
    assert [len(rows) for _, rows, _ in drawn] == sizes


@pytest.mark.parametrize(("network", "options"), KINDS)
def test_only_the_current_task_counts_for_statistics_and_old_heads_learn(network, options):
    running, task = learning_task(2, network, **options)
    net = running.net
    plain = copy.deepcopy(net)
    step = step_of(task, torch.optim.SGD(net.parameters(), lr=0.1))
    for each in (net, plain):
        each.set_generator(torch.Generator().manual_seed(0))
    plain(step.x, 2)
    running.method.loss(net, step).backward()
    wanted = dict(plain.named_buffers())
    assert all(torch.equal(value, wanted[name]) for name, value in net.named_buffers())
    assert all(module.training for module in net.modules())
    moved(net)
    running.method.loss(net, step).backward()
    heads = [p for old in range(3) for p in net.head_parameters(old)]
    assert all(p.grad.abs().max() > 1e-9 for p in heads)
    learnt = {id(p) for p in running.method.parameters(net, [task])}
    assert learnt == {id(p) for p in net.parameters()}


def test_one_head_for_all_has_labels_for_new_images_and_outputs_for_exemplars():
    running, task = learning_task(2, heads="shared")
    method, net, before = running.method, running.net, weights(running.net)
    moved(net)
    step = step_of(task, torch.optim.SGD(net.parameters(), lr=0.1), torch.tensor([40, 3]), seed=3)
    now, total = weights(net), 0.0
    labels = np.eye(3)[step.y.numpy()].flatten()
    for y, g in zip(labels, outputs(now, step.x.numpy(), 0).flatten(), strict=True):
        total += binary(y, g)
    for old, rows, weight in method.draw(torch.Generator().manual_seed(3)):
        x = seen(STREAM, old, method.exemplars[old].images[rows]).numpy()
        was, g = outputs(before, x, 0).flatten(), outputs(now, x, 0).flatten()
        for a, b in zip(was, g, strict=True):
            total += weight * (binary(sigmoid(a), b) - binary(sigmoid(a), a))
    assert method.loss(net, step).item() == pytest.approx(total / 26, rel=1e-12)


@pytest.mark.parametrize(("network", "options"), KINDS)
def test_means_are_of_the_exemplars_and_follow_the_network(network, options):
    running, task = learning_task(2, network, **options)
    stream = STREAM if network == "mlp" else IMAGES
    net = running.net
    assert len(net.means) == 2
    old = [m.clone() for m in net.means]
    moved(net)
    running.method.end_task(net, task, torch.Generator().manual_seed(0))
    net.eval()
    for number, (kept, means) in enumerate(zip(running.method.exemplars, net.means, strict=True)):
        with torch.no_grad():  # fewer than 65: one batch, whatever its order
            z = unit(net.embed(seen(stream, number, kept.images), number).numpy())
        classes = [z[kept.labels.numpy() == label].mean(0) for label in range(len(means))]
        assert np.abs(means.numpy() - unit(np.array(classes))).max() < 1e-9
        x = inputs(stream[number])
        distances = torch.cdist(torch.nn.functional.normalize(net.embed(x, number)), means)
        assert torch.equal(net(x, number).argmax(1), distances.argmin(1))
    assert all(not torch.allclose(a, b, atol=1e-4) for a, b in zip(old, net.means, strict=False))


@pytest.mark.parametrize(
    "options", [{}, OWN_NORMS, {"heads": "shared"}, {"batch_norm": True, "dropout": 0.5}]
)
def test_resumes_in_the_middle_of_a_task(options):
    running, task = learning_task(1, **options)
    straight, stopped = interrupted(running, task, STREAM)
    assert torch.equal(straight, stopped)


def test_validation_uses_the_head_of_the_current_task():
    running, task = learning_task(1, schedule="plateau", epochs=3)
    net = running.net.eval()
    x = inputs(task)
    assert torch.equal(net(x, 1), net.heads[1](net.embed(x, 1)))
    assert not torch.equal(net(x, 0), net.heads[0](net.embed(x, 0)))


def test_bytes_are_those_of_exemplars_means_and_outputs():
    running, task = learning_task(2)
    kept = 18 * (64 + 8)  # 3 of each of 6 classes: 8 x 8 pixels and a label
    answers = (18 + len(task.train)) * 6 * 8
    means = 6 * 12 * 8
    assert running.method.memory_bytes() == kept + answers + means
    running.method.end_task(running.net, task, torch.Generator().manual_seed(0))
    assert running.method.memory_bytes() == 18 * (64 + 8) + 9 * 12 * 8


def test_wrapping_twice_changes_nothing():
    running, _ = learning_task(1)
    again = ICaRL(memory=20).wrap(running.net, STREAM, 1)
    assert again is running.net
    assert isinstance(again, NearestMeans)
    assert len(again.means) == 1


def test_images_in_floating_point_are_kept_as_they_are():
    tasks, tests = [], []
    for task in STREAM:
        split = Split(task.train.unit_images(slice(None)), task.train.labels)
        tasks.append(replace(task, train=split))
        tests.append(STREAM.test(task.id))
    running = learning(TaskStream("floats", tasks, tests), ICaRL(memory=20), 2)
    assert running.method.exemplars[0].images.dtype == torch.float32
    assert running.method.exemplars[0].images.max() <= 1


def test_too_small_a_memory_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"memory=8 .* 9 classes .* at least 9") as caught:
        learning(STREAM, ICaRL(memory=8), 0)
    assert "\n" not in str(caught.value)
    for values in ({"memory": 0}, {"K": 0}, {"memory_batch": 1}):
        with pytest.raises(UserError, match=next(iter(values))):
            ICaRL(**values)


def test_a_memory_that_leaves_a_task_one_exemplar_is_refused_with_batch_norm():
    parts = [blobs(1, classes=classes, seed=classes) for classes in (3, 1)]
    tasks = [replace(of[0], id=number) for number, of in enumerate(parts)]
    stream = TaskStream("odd", tasks, [of.test(0) for of in parts])
    with pytest.raises(UserError, match=r"memory=7 leaves a task with .* at least 8"):
        Run(make_plan(stream, "icarl", values={"memory": 7, "batch_norm": True}), stream)
    Run(make_plan(stream, "icarl", values={"memory": 8, "batch_norm": True}), stream)
    Run(make_plan(stream, "icarl", values={"memory": 7}), stream)
