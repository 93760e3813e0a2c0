"""Learning without Forgetting against its equations."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional

from classgrad import methods, run
from classgrad.errors import UserError
from classgrad.methods import Finetune, LwF
from classgrad.training.loop import fit
from oracles.distilled import go_on, inputs, interrupted, learning, outputs, softmax, weights
from streams import blobs, step_of

STREAM = blobs()
IMAGES = blobs(tasks=3, classes=2, shape=(3, 20, 20), per_class=6)
OWN_NORMS = {"batch_norm": True, "norm": "stored", "affine": "task"}
LONG = {"epochs": 15, "learning_rate": 0.05, "momentum": 0.8}
KINDS = [
    ("mlp", {}),
    ("mlp", {"batch_norm": True, "norm": "stored"}),
    ("mlp", {"batch_norm": True, "norm": "batch", "affine": "task"}),
    ("mlp", {**OWN_NORMS, "dropout": 0.3}),
    ("mlp", {**OWN_NORMS, "heads": "shared"}),
    ("resnet18", {"width": 2, "norm": "stored"}),
]


# Networks whose outputs for an image depend on its batch or on a dropout mask.
NOISY = [
    {"batch_norm": batch_norm, "norm": norm, "affine": affine, "dropout": dropout}
    for batch_norm, norm in ((False, "batch"), (True, "batch"), (True, "stored"))
    for affine in (("first", "task") if batch_norm else ("first",))
    for dropout in (0.0, 0.5)
]


def learning_task(number, network="mlp", method=None, **values):
    stream = STREAM if network == "mlp" else IMAGES
    running = learning(stream, method or LwF(), number, network, **values)
    return running, stream[number]


def moved(net, by=0.05):
    """Shift all weights a little, each by another amount."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(by * torch.randn(p.shape, generator=rng, dtype=p.dtype))


def loss_of(running, task, index=None):
    optimizer = torch.optim.SGD(running.net.parameters(), lr=0.1)
    return running.method.loss(running.net, step_of(task, optimizer, index))


def gradients(running, task):
    running.net.zero_grad()
    loss_of(running, task).backward()
    return [p.grad for p in running.net.parameters()]


@pytest.mark.parametrize("temperature", [1, 2])
def test_the_loss_is_that_of_the_equations(temperature):
    running, task = learning_task(2, method=LwF(strength=0.7, temperature=temperature))
    before = weights(running.net)
    moved(running.net)
    index = torch.tensor([40, 3, 17, 5, 29])
    x, now = inputs(task, index).numpy(), weights(running.net)
    wanted = 0.0
    for i, label in enumerate(task.train.labels[index].tolist()):
        wanted -= np.log(softmax(outputs(now, x, 2)[i])[label])
        for old in range(2):
            y = softmax(outputs(before, x, old)[i] / temperature)
            y_now = softmax(outputs(now, x, old)[i] / temperature)
            wanted += 0.7 * (y * (np.log(y) - np.log(y_now))).sum()
    assert loss_of(running, task, index).item() == pytest.approx(wanted / 5, rel=1e-12)


@pytest.mark.parametrize(("network", "options"), KINDS)
def test_recorded_are_the_outputs_of_each_old_task(network, options):
    running, task = learning_task(2, network, LwF(targets="task"), **options)
    net = running.net.eval()
    parts = [net(inputs(task), old) for old in range(2)]
    recorded = running.method.state_dict()["answers"]
    assert torch.allclose(recorded, torch.cat(parts, 1), atol=1e-12)
    assert not torch.allclose(parts[0], parts[1], atol=1e-3)


@pytest.mark.parametrize(("network", "options"), KINDS)
def test_nothing_is_pulled_as_long_as_nothing_has_moved(network, options):
    running, task = learning_task(2, network, **options)
    plain = copy.deepcopy(running)
    plain.session.method = Finetune()
    if "dropout" in options:  # the pass of the current task has it: the same in both
        for each in (running, plain):
            each.net.set_generator(torch.Generator().manual_seed(0))
    for pulled, free in zip(gradients(running, task), gradients(plain, task), strict=True):
        free = torch.zeros_like(pulled) if free is None else free
        assert pulled is None or torch.allclose(pulled, free, atol=1e-12)
    moved(running.net)
    gradients(running, task)
    assert running.net.head_parameters(0)[0].grad.abs().max() > 1e-6


@pytest.mark.parametrize("options", NOISY)
def test_at_the_start_nothing_pulls_whatever_the_batch_and_the_dropout_mask(options):
    """A batch is not the one that outputs would be recorded with, nor does dropout spare it."""
    running, task = learning_task(2, **options)
    plain = copy.deepcopy(running)
    plain.session.method = Finetune()
    for number in range(3):
        index = torch.randperm(48, generator=torch.Generator().manual_seed(number))[:12]
        for each in (running, plain):
            each.net.set_generator(torch.Generator().manual_seed(number))
        pull = loss_of(running, task, index) - loss_of(plain, task, index)
        assert abs(pull.item()) < 1e-12
    moved(running.net)
    gradients(running, task)
    assert running.net.head_parameters(0)[0].grad.abs().max() > 1e-6


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_it_forgets_less_than_half_as_much_as_finetuning(dropout):
    forgotten = []
    for method in (LwF(), Finetune()):
        values = {"epochs": 4, "dropout": dropout}
        record = run("permuted-digits", method, seed=101, values=values)
        forgotten.append(-record.backward_transfer)
    assert forgotten[0] < 0.5 * forgotten[1]


def test_one_head_for_all_counts_once():
    running, task = learning_task(2, heads="shared", method=LwF(strength=0.7, temperature=1))
    before = running.method.state_dict()["answers"]
    assert before.shape == (len(task.train), 3)
    moved(running.net)
    logits = running.net(inputs(task), 2)
    pull = functional.kl_div(
        logits.log_softmax(1), before.log_softmax(1), log_target=True, reduction="batchmean"
    )
    wanted = functional.cross_entropy(logits, task.train.labels) + 0.7 * pull
    assert loss_of(running, task).item() == pytest.approx(wanted.item(), rel=1e-12)


def test_stored_statistics_are_of_the_current_task_alone():
    running, task = learning_task(1, **OWN_NORMS)
    plain = copy.deepcopy(running)
    for each, method in ((running, running.method), (plain, Finetune())):
        optimizer = torch.optim.SGD(each.net.parameters(), lr=0.1)
        method.loss(each.net, step_of(task, optimizer))
    result, wanted = dict(running.net.named_buffers()), dict(plain.net.named_buffers())
    assert all(torch.equal(result[name], wanted[name]) for name in wanted)
    assert running.net.training
    assert all(module.training for module in running.net.modules())


def test_old_heads_keep_their_outputs_better_than_under_finetuning():
    drifts = []
    for method in (LwF(temperature=1), Finetune()):
        running, task = learning_task(1, method=method, width=64, **LONG)
        x = inputs(task)
        before = running.net(x, 0).softmax(1).detach()
        fit(running.net, running.method, [task], running.plan.training, seed=1)
        drifts.append((running.net(x, 0).softmax(1) - before).abs().mean().item())
        right = running.net(x, 1).argmax(1) == task.train.labels
        assert right.double().mean() > 0.9
    assert drifts[0] < 0.5 * drifts[1]


@pytest.mark.parametrize("options", [{}, OWN_NORMS, {"heads": "shared"}, NOISY[1]])
def test_resumes_in_the_middle_of_a_task(options):
    running, task = learning_task(1, **options)
    straight, stopped = interrupted(running, task, STREAM)
    assert torch.equal(straight, stopped)


def test_outputs_are_counted_while_they_are_kept_and_gone_with_the_task():
    running, task = learning_task(2)
    assert running.method.memory_bytes() == len(task.train) * 6 * 8
    running.method.end_task(running.net, task, torch.Generator())
    assert running.method.memory_bytes() == 0
    assert running.method.state_dict() == {"answers": None, "before": None}


def test_a_copy_of_the_network_is_counted_while_it_is_kept_and_gone_with_the_task():
    running, task = learning_task(2, dropout=0.3)
    state = running.net.state_dict()
    assert running.method.memory_bytes() == sum(value.nbytes for value in state.values())
    running.method.end_task(running.net, task, torch.Generator())
    assert running.method.memory_bytes() == 0


def test_no_strength_is_finetuning():
    ends = []
    for method in (LwF(strength=0), Finetune()):
        running, task = learning_task(1, method=method)
        ends.append(go_on(running.net, running.method, task, range(5)))
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("values", "named"),
    [({"lambda": -1}, "lambda"), ({"T": 0}, "T"), ({"temprature": 2}, "temperature")],
)
def test_bad_settings_are_refused_in_one_line(values, named):
    with pytest.raises(UserError, match=named) as caught:
        methods.make("lwf", **values)
    assert "\n" not in str(caught.value)
