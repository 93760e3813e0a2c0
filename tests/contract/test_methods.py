"""What every method in the table promises. Registering a method is what makes it tested."""

import copy
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from classgrad import methods
from classgrad.errors import UserError
from classgrad.methods import METHODS, Step
from classgrad.prediction.accuracy import accuracy
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import TaskStream
from classgrad.training.loop import fit
from families import FAMILIES
from streams import blobs

STREAM = blobs()
TWO_TASKS = blobs(tasks=2)
QUICK = {"epochs": 8, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.8, "warmup": 0}
# Half of HAT's units are off from the start, and half of ER's loss is of old tasks: more steps.
LONGER = {"hat": {"epochs": 24}, "er": {"epochs": 12}}
# Two of the fifty children of a task; with old weights frozen they need more steps. Some of the
# 200 gradients of a task, each with a number for every weight.
FEWER = {"rcl": {"trials": 2, "child_epochs": 30}, "ogd": {"samples": 24}}
OTHER_NETWORKS = [
    ("mlp", {"batch_norm": True, "norm": "stored", "dropout": 0.1}, [*FAMILIES, "mas", "ogd"]),
    # Activations are not normalised any more in the second task: smaller steps.
    (
        "mlp",
        {"batch_norm": True, "norm": "first", "learning_rate": 0.01},
        [*FAMILIES, "gpm", "den"],
    ),
    ("mlp", {"heads": "shared"}, METHODS),
    ("lenet5", {}, FAMILIES),
    # Each family, and those that take gradients of samples apart.
    ("mlp", {"precision": "bfloat16"}, [*FAMILIES, "mas", "imm", "ogd", "gem"]),
]

IMAGES = blobs(tasks=2, classes=2, shape=(3, 20, 20), per_class=8)
# Deep networks for a method of each family, some with both kinds of BatchNorm, and an AlexNet of
# three million weights for those that cannot use a ResNet.
DEEP = [
    ("resnet18", {"width": 4, "norm": "batch"}, ["cgp", "ewc", "er", "hat"]),
    ("resnet18", {"width": 4, "norm": "stored"}, [*FAMILIES, "gem", "icarl"]),
    ("alexnet5", {"norm": "batch"}, ["cgp", "den", "rcl"]),
    ("alexnet5", {"norm": "stored", "affine": "task"}, ["gpm", "apd"]),
    ("resnet18", {"width": 4, "norm": "first"}, ["cgp", "ewc"]),
]

# Methods that cannot use a network, or one head for all tasks, say so in one line.
GROWS = {"resnet18": "ResNet18", "shared": "heads=task", "first": "norm=stored"}
CANNOT = {"den": GROWS, "rcl": GROWS}

# All tests of a method one after another: they share its reference.
every_method = pytest.mark.parametrize("name", METHODS, scope="module")


def start(name, network="mlp", stream=STREAM, **values):
    values = {**QUICK, **LONGER.get(name, {}), **FEWER.get(name, {}), **values}
    plan = make_plan(stream, name, network=network, values=values)
    return Run(plan, stream)


@dataclass(frozen=True)
class Reference:
    """A run that was left alone, which tests share: whoever changes a part of it takes a copy."""

    after_one: Run
    after_two: Run
    ended: Run
    record: RunRecord
    losses: dict[int, list[float]]


@cache
def reference(name):
    running, losses = start(name), {}

    def observer(at):
        losses.setdefault(at.task, []).append(at.loss)

    between = []
    for number in range(2):
        running.observer = observer
        running.learn(number)
        running.observer = None
        between.append(copy.deepcopy(running))
    record = running.execute(observer)
    return Reference(*between, running, record, losses)


def weights(running):
    return torch.cat([p.detach().flatten() for p in running.net.parameters()])


def refused(name, network, options):
    """Tell whether a method cannot use a network; if so, see that it says why."""
    reasons = CANNOT.get(name, {})
    given = {network, options.get("heads"), options.get("norm")}
    named = next((reason for value, reason in reasons.items() if value in given), None)
    if named is None:
        return False
    stream = IMAGES if network == "resnet18" else STREAM
    with pytest.raises(UserError, match=f"{name} .*{named}") as caught:
        start(name, network, stream=stream, **options)
    assert "\n" not in str(caught.value)
    return True


def hooks(net):
    return [
        (path, what)
        for path, module in net.named_modules()
        for what in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        if getattr(module, what)
    ] + [(path, "forward") for path, module in net.named_modules() if "forward" in vars(module)]


def see_that_it_learnt(running, record):
    assert record.complete
    assert hooks(running.net) == []
    last = [row for row in record.accuracy_matrix if row[0] is not None][-1]
    assert last[-1] > 80  # three classes: chance is 33


def see_that_tasks_share_only_what_is_common(running, stream):
    """See that embeddings for all tasks at once are those for one after another."""
    net, tasks = running.net.eval(), range(len(stream))
    x = stream[0].transform(stream.test(0).unit_images(slice(0, 8)))
    with torch.no_grad():
        together = net.embed_each(x, tasks)
        for task in tasks:
            assert torch.equal(together[task], net.embed(x, task)), task


@every_method
def test_learns_a_stream_and_leaves_no_hook(name):
    see_that_it_learnt(reference(name).ended, reference(name).record)
    see_that_tasks_share_only_what_is_common(copy.deepcopy(reference(name).ended), STREAM)


def cases(table):
    return [(network, options, name) for network, options, names in table for name in names]


@pytest.mark.parametrize(("network", "options", "name"), cases(OTHER_NETWORKS))
def test_learns_with_other_networks(network, options, name):
    if refused(name, network, options):
        return
    running = start(name, network, TWO_TASKS, **options)
    see_that_it_learnt(running, running.execute())


@pytest.mark.parametrize(("network", "options", "name"), cases(DEEP))
def test_works_with_deep_networks_and_both_kinds_of_batch_norm(network, options, name):
    if refused(name, network, options):
        return
    fewer = {"child_epochs": 2} if name == "rcl" else {}
    running = start(name, network, IMAGES, epochs=2, batch_size=8, **fewer, **options)
    record = running.execute()
    assert record.complete
    assert hooks(running.net) == []
    assert all(p.isfinite().all() for p in running.net.parameters())
    see_that_tasks_share_only_what_is_common(running, IMAGES)


@every_method
def test_one_head_for_tasks_with_fewer_classes(name):
    if refused(name, "mlp", {"heads": "shared"}):
        return
    tasks = [blobs(1, classes=classes, seed=classes) for classes in (4, 2, 3)]
    stream = TaskStream(
        "unequal",
        [replace(of[0], id=number) for number, of in enumerate(tasks)],
        [of.test(0) for of in tasks],
    )
    record = start(name, stream=stream, heads="shared", epochs=2).execute()
    assert record.complete
    assert [len(task.final) for task in record.classes] == [4, 2, 3]


@every_method
def test_loss_falls(name):
    losses = reference(name).losses
    assert len(losses) == (1 if METHODS[name].joint else len(STREAM))
    for of_task in losses.values():
        assert sum(of_task[-4:]) < 0.8 * sum(of_task[:4])


@every_method
def test_heads_of_finished_tasks_move_only_with_methods_that_revisit_them(name):
    old = reference(name).after_one.net.head_parameters(0)
    running = copy.deepcopy(reference(name).after_two)
    new = running.net.head_parameters(0)
    moving = {id(p) for p in running.method.parameters(running.net, [STREAM[1]])}
    assert all(id(p) in moving for p in new) == METHODS[name].revisits
    if not METHODS[name].revisits:
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


@every_method
def test_state_survives_a_round_trip(name):
    running = copy.deepcopy(reference(name).after_one)
    state = running.method.state_dict()
    net = copy.deepcopy(running.net)
    again = methods.make(name, **running.plan.method.model_dump())
    again.wrap(net, STREAM, 1)
    again.load_state_dict(state, net)
    assert again.memory_bytes() == running.method.memory_bytes() or running.method.joint
    assert [vars(layer) for layer in again.layer_ranks()] == [
        vars(r) for r in running.method.layer_ranks()
    ]
    for model, method in ((running.net, running.method), (net, again)):
        model.add_task(STREAM[1].classes)
        method.begin_task(model, STREAM[1])
        fit(model, method, [STREAM[1]], running.plan.training, seed=1)
        method.close()
    for left, right in zip(running.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(left, right)


@every_method
def test_state_holds_no_graph_and_nothing_odd(name):
    def check(value):
        if isinstance(value, torch.Tensor):
            assert not value.requires_grad
            assert value.grad_fn is None
        elif isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            [check(part) for part in value.values()]
        elif isinstance(value, list):
            [check(part) for part in value]
        else:
            assert value is None or isinstance(value, int | float | str | bool)

    check(reference(name).after_one.method.state_dict())


@every_method
def test_works_in_float64(name):
    running = start(name, stream=TWO_TASKS)
    running.net.double()
    record = running.execute()
    assert all(p.dtype == torch.float64 for p in running.net.parameters())
    assert record.average_accuracy > 60


@every_method
@pytest.mark.parametrize(
    "optimiser", [{"optimizer": "adam", "learning_rate": 0.005}, {"weight_decay": 1e-3}]
)
def test_works_with_every_optimiser(name, optimiser):
    record = start(name, stream=TWO_TASKS, **optimiser).execute()
    assert record.average_accuracy > 60


@every_method
def test_same_seed_same_bits_and_another_seed_differs(name):
    """Also with the same instance of the method: a run leaves nothing in it."""
    first = reference(name)
    again = Run(first.ended.plan, STREAM)
    assert again.execute().accuracy_matrix == first.record.accuracy_matrix
    assert torch.equal(weights(again), weights(first.ended))
    plan = first.ended.plan
    other = Run(replace(plan, seed=plan.seed + 1), STREAM)
    other.learn(0)
    assert not torch.equal(weights(other), weights(first.after_one))


@every_method
def test_hooks_are_gone_after_a_failure_in_training(name):
    running = copy.deepcopy(reference(name).after_one)

    def explode(net, step: Step):
        raise RuntimeError("in the middle of a step")

    object.__setattr__(running.method, "adjust_gradients", explode)
    with pytest.raises(RuntimeError, match="in the middle"):
        running.execute()
    assert hooks(running.net) == []


@every_method
def test_learnt_on_its_own_the_first_task_is_learnt_as_by_finetune(name):
    """Bit for bit, but for methods with a loss or layers of their own; CGP's contrast is off."""
    values = {"contrast": 0} if name == "cgp" else {}
    nets = []
    for method in (methods.make(name, **values), methods.make("finetune")):
        plan = make_plan(STREAM, method, values={**QUICK, **LONGER.get(name, {})})
        running = Run(plan, STREAM)
        running.method.begin_task(running.net, STREAM[0])
        fit(running.net, running.method, [STREAM[0]], plan.training, seed=1)
        running.method.close()
        nets.append(running.net)
    assert accuracy(nets[0], 0, STREAM[0], STREAM.test(0)) > 80
    parameters = [[p.detach() for p in net.parameters()] for net in nets]
    same = len(parameters[0]) == len(parameters[1]) and all(map(torch.equal, *parameters))
    assert same == METHODS[name].first_task_is_finetune
