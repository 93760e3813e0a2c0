"""What every method in the table promises. Registering a method is what makes it tested."""

import copy
from dataclasses import replace

import pytest
import torch

from classgrad import methods
from classgrad.errors import UserError
from classgrad.methods import METHODS, Step
from classgrad.prediction.accuracy import accuracy
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import TaskStream
from classgrad.training.loop import fit
from streams import blobs

STREAM = blobs()
QUICK = {"epochs": 8, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.8, "warmup": 0}
# Half of HAT's units are off from the start, and half of ER's loss is of old tasks: more steps.
LONGER = {"hat": {"epochs": 24}, "er": {"epochs": 12}}
# Two of the fifty children of a task; with old weights frozen they need more steps.
FEWER = {"rcl": {"trials": 2, "child_epochs": 30}}
NETWORKS = [
    ("mlp", {}),
    ("mlp", {"batch_norm": True, "norm": "stored", "dropout": 0.1}),
    ("mlp", {"heads": "shared"}),
    ("lenet5", {}),
]

IMAGES = blobs(tasks=2, classes=2, shape=(3, 20, 20), per_class=8)
DEEP = [
    ("alexnet5", {"norm": "batch"}),
    ("alexnet5", {"norm": "stored", "affine": "task"}),
    ("resnet18", {"width": 4, "norm": "batch"}),
    ("resnet18", {"width": 4, "norm": "stored"}),
]

# Methods that cannot use a network, or one head for all tasks, say so in one line.
GROWS = {"resnet18": "ResNet18", "shared": "heads=task"}
CANNOT = {"den": GROWS, "rcl": GROWS}

pytestmark = pytest.mark.parametrize("name", METHODS)


def start(name, network="mlp", stream=STREAM, **values):
    values = {**QUICK, **LONGER.get(name, {}), **FEWER.get(name, {}), **values}
    plan = make_plan(stream, name, network=network, values=values)
    return Run(plan, stream)


def refused(name, network, options):
    """Tell whether a method cannot use a network; if so, see that it says why."""
    reasons = CANNOT.get(name, {})
    if not {network, options.get("heads")} & set(reasons):
        return False
    stream = IMAGES if network == "resnet18" else STREAM
    named = reasons.get(network) or reasons["shared"]
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


@pytest.mark.parametrize(("network", "options"), NETWORKS)
def test_learns_a_stream_and_leaves_no_hook(name, network, options):
    if refused(name, network, options):
        return
    running = start(name, network, **options)
    record = running.execute()
    assert record.complete
    assert hooks(running.net) == []
    last = [row for row in record.accuracy_matrix if row[0] is not None][-1]
    assert last[-1] > 80  # three classes: chance is 33


@pytest.mark.parametrize(("network", "options"), DEEP)
def test_deep_networks_with_both_kinds_of_batch_norm(name, network, options):
    if refused(name, network, options):
        return
    running = start(name, network, stream=IMAGES, epochs=2, batch_size=8, **options)
    record = running.execute()
    assert record.complete
    assert hooks(running.net) == []
    assert all(p.isfinite().all() for p in running.net.parameters())


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


def test_loss_falls(name):
    running = start(name)
    losses = {}
    running.execute(lambda at: losses.setdefault(at.task, []).append(at.loss))
    for of_task in losses.values():
        assert sum(of_task[-4:]) < 0.8 * sum(of_task[:4])


def test_heads_of_finished_tasks_move_only_with_methods_that_revisit_them(name):
    running = start(name)
    running.learn(0)
    old = [p.detach().clone() for p in running.net.head_parameters(0)]
    running.learn(1)
    new = running.net.head_parameters(0)
    moving = {id(p) for p in running.method.parameters(running.net, [STREAM[1]])}
    assert all(id(p) in moving for p in new) == METHODS[name].revisits
    if not METHODS[name].revisits:
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


def test_state_survives_a_round_trip(name):
    running = start(name)
    running.learn(0)
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


def test_state_holds_no_graph_and_nothing_odd(name):
    running = start(name)
    running.learn(0)

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

    check(running.method.state_dict())


def test_works_in_float64(name):
    running = start(name)
    running.net.double()
    record = running.execute()
    assert all(p.dtype == torch.float64 for p in running.net.parameters())
    assert record.average_accuracy > 60


@pytest.mark.parametrize(
    "optimiser",
    [{"optimizer": "adam", "learning_rate": 0.005}, {"weight_decay": 1e-3}, {"momentum": 0.0}],
)
def test_works_with_every_optimiser(name, optimiser):
    record = start(name, **optimiser).execute()
    assert record.average_accuracy > 60


def test_same_seed_same_bits_and_another_seed_differs(name):
    weights = []
    for seed in (1, 1, 2):
        values = {**QUICK, **FEWER.get(name, {})}
        running = Run(make_plan(STREAM, name, seed=seed, values=values), STREAM)
        running.execute()
        weights.append(torch.cat([p.detach().flatten() for p in running.net.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_one_instance_serves_two_runs(name):
    method = methods.make(name, **FEWER.get(name, {}))
    plan = make_plan(STREAM, method, values=QUICK)
    records = [Run(plan, STREAM).execute() for _ in range(2)]
    assert records[0].accuracy_matrix == records[1].accuracy_matrix


def test_hooks_are_gone_after_a_failure_in_training(name):
    running = start(name)
    running.learn(0)
    running.plan.method.close()

    def explode(net, step: Step):
        raise RuntimeError("in the middle of a step")

    object.__setattr__(running.method, "adjust_gradients", explode)
    with pytest.raises(RuntimeError, match="in the middle"):
        running.execute()
    assert hooks(running.net) == []


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
