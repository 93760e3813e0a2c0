"""RCL: its controller against finite differences, and children that leave old weights alone."""

import copy
from dataclasses import replace

import pytest
import torch

from classgrad import methods, networks
from classgrad.errors import UserError
from classgrad.methods import RCL
from classgrad.methods.structure.growing import units, width
from classgrad.methods.structure.rcl import Controller
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, TaskStream
from streams import blobs, step_of

FLAT = blobs(tasks=3, classes=2, shape=(1, 4, 4), per_class=6)
IMAGES = blobs(tasks=2, classes=2, shape=(1, 8, 8), per_class=6)
QUICK = {"epochs": 2, "batch_size": 4, "learning_rate": 0.05, "warmup": 0}
FEW = {"trials": 3, "child_epochs": 2, "largest": 4, "hidden": 10}


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def start(network="mlp", stream=FLAT, **values):
    options = {"width": 6} if network == "mlp" else {}
    plan = make_plan(stream, "rcl", network=network, values={**QUICK, **FEW, **options, **values})
    return Run(plan, stream)


@pytest.mark.parametrize("sees", ["outputs", "choices"])
def test_the_policy_gradient_is_that_of_the_expected_reward(sees):
    """Two choices of two: the mean of the estimate over all four against finite differences."""
    controller = Controller(2, rng(), hidden=3, sees=sees).double()
    rewards = {(0, 0): 0.3, (0, 1): 0.9, (1, 0): -0.4, (1, 1): 0.1}

    def expected():
        with torch.no_grad():
            odds = {a: controller.log_probability(list(a)).sum().exp().item() for a in rewards}
        assert sum(odds.values()) == pytest.approx(1, abs=1e-12)
        return odds, sum(odds[a] * r for a, r in rewards.items())

    odds, _ = expected()
    parameters = [*controller.lstm.parameters(), *controller.policy.parameters()]
    mean = [torch.zeros_like(p) for p in parameters]
    for actions, reward in rewards.items():
        result = torch.autograd.grad(controller.loss(list(actions), reward), parameters)
        for total, gradient in zip(mean, result, strict=True):
            total -= odds[actions] * gradient
    largest = 0.0
    for parameter, gradient in zip(parameters, mean, strict=True):
        for place in range(0, parameter.numel(), 13):
            flat = parameter.data.view(-1)
            before, ends = flat[place].item(), []
            for move in (1e-5, -1e-5):
                flat[place] = before + move
                ends.append(expected()[1])
            flat[place] = before
            slope = (ends[0] - ends[1]) / 2e-5
            assert gradient.view(-1)[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-9)
            largest = max(largest, abs(slope))
    assert largest > 1e-2


def test_by_default_the_controller_sees_its_outputs_and_draws_from_them_independently():
    """The chain of softmax outputs, unrolled by hand; what is drawn does not enter it."""
    controller = Controller(3, rng(), hidden=4).double()
    seen, memory, outputs = controller.first[None, None], None, []
    for _ in range(3):
        state, memory = controller.lstm(seen, memory)
        seen = torch.softmax(controller.policy(state), 2)
        outputs.append(seen[0, 0])
    for actions in ([0, 1, 2], [2, 0, 1], [1, 1, 0]):
        expected = [outputs[place][action].log() for place, action in enumerate(actions)]
        torch.testing.assert_close(controller.log_probability(actions), torch.stack(expected))
    depends = Controller(3, rng(), hidden=4, sees="choices").double()
    assert depends.log_probability([0, 1])[1] != depends.log_probability([2, 1])[1]
    assert Controller(3, rng(1), hidden=4).first.tolist() != controller.first.tolist()


@pytest.mark.parametrize("sees", ["outputs", "choices"])
def test_the_critic_learns_the_mean_reward_and_does_not_move_the_controller(sees):
    controller = Controller(2, rng(), hidden=4, critic_rate=0.05, sees=sees)
    loss = controller.loss([0], 1.0)
    values = controller.values(controller.states([0]))
    (critic,) = torch.autograd.grad(loss, [controller.critic.bias])
    assert critic.item() == pytest.approx(2 * (values.item() - 1.0), rel=1e-5)
    for number in range(120):
        controller.learn([number % 2], 0.7)
    assert controller.values(controller.states([0])).item() == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("sees", ["outputs", "choices"])
def test_the_controller_finds_the_best_widths(sees):
    controller = Controller(4, rng(), hidden=20, rate=0.003, critic_rate=0.05, sees=sees)
    draws = rng(10)
    for _ in range(400):
        actions = controller.sample(2, draws)
        controller.learn(actions, 1 - 0.3 * abs(actions[0] - 2) - 0.3 * abs(actions[1] - 1))
    last = [tuple(controller.sample(2, draws)) for _ in range(40)]
    assert last.count((2, 1)) > 25


@pytest.mark.parametrize(
    ("network", "stream", "values"),
    [
        ("mlp", FLAT, {}),
        ("mlp", FLAT, {"batch_norm": True, "norm": "stored"}),
        ("mlp", FLAT, {"optimizer": "adamw", "weight_decay": 0.1}),
        ("lenet5", IMAGES, {"trials": 1}),
    ],
)
def test_old_weights_and_old_outputs_keep_their_bits(network, stream, values):
    running = start(network, stream, **values)
    x = stream.test(0).unit_images(slice(0, 8))
    running.learn(0)
    answers = running.net.eval()(x, 0)
    old = {name: p.detach().clone() for name, p in running.net.named_parameters()}
    for task in range(1, len(stream)):
        running.learn(task)
    assert torch.equal(running.net.eval()(x, 0), answers)
    assert any(numbers[-1] > numbers[0] for numbers in units(running.net).values())
    for name, parameter in running.net.named_parameters():
        if name in old:
            part = parameter.detach()[tuple(slice(n) for n in old[name].shape)]
            assert torch.equal(part, old[name]), name
    assert running.method.memory_bytes() == 0


def test_the_child_with_the_best_reward_is_kept(monkeypatch):
    """The second child is said to be the best; its units and bits are what remains."""
    told = iter([50.0, 90.0, 70.0])
    children = []

    def judged(net, head, task, split):
        assert split is task.valid
        children.append(copy.deepcopy(net.state_dict()))
        return next(told)

    running = start(price=0.0)
    running.learn(0)
    monkeypatch.setattr("classgrad.methods.structure.rcl.accuracy", judged)
    running.net.add_task(2)
    running.method.begin_task(running.net, FLAT[1])
    running.method.fit_task(
        running.net, FLAT[1], running.session.training_loop(FLAT[1], running.observe)
    )
    assert [t["reward"] for t in running.method._children] == pytest.approx([0.5, 0.9, 0.7])
    more = [now - 6 for now in width(running.net).values()]
    assert more == running.method._children[1]["actions"]
    assert running.method.state_dict()["units"] == units(running.net)
    for name, value in running.net.state_dict().items():
        assert torch.equal(value, children[1][name]), name


def test_units_have_their_price(monkeypatch):
    monkeypatch.setattr("classgrad.methods.structure.rcl.accuracy", lambda *_: 100.0)
    running = start(price=0.01, trials=6)
    running.learn(0)
    running.net.add_task(2)
    running.method.begin_task(running.net, FLAT[1])
    running.method.fit_task(
        running.net, FLAT[1], running.session.training_loop(FLAT[1], running.observe)
    )
    tried = running.method._children
    for one in tried:
        assert one["reward"] == pytest.approx(1 - 0.01 * sum(one["actions"]))
    kept = sum(width(running.net).values()) - 12
    assert kept == min(sum(one["actions"]) for one in tried)


def test_choices_go_from_none_to_the_largest():
    running = start(largest=1, trials=12, child_epochs=1)
    running.learn(0)
    running.net.add_task(2)
    running.method.begin_task(running.net, FLAT[1])
    running.method.fit_task(
        running.net, FLAT[1], running.session.training_loop(FLAT[1], running.observe)
    )
    assert {a for tried in running.method._children for a in tried["actions"]} == {0, 1}


def test_what_a_child_trains_is_pulled_to_zero():
    running = start(l2=0.7)
    running.learn(0)
    net, method = running.net, running.method
    net.add_task(2)
    method.begin_task(net, FLAT[1])
    head = net.heads[1].weight
    step = step_of(FLAT[1], torch.optim.SGD([head], lr=0.1))
    loss = method.loss(net, step)
    (plain,) = torch.autograd.grad(loss, head, retain_graph=True)
    loss.backward()
    method.adjust_gradients(net, step)
    torch.testing.assert_close(head.grad, plain + 0.7 * head.detach())


def test_capacity_of_a_run_by_hand():
    running = start()
    record = running.execute()
    stored = sum(int((p != 0).sum()) for p in running.net.parameters())
    assert stored > 16 * 6 + 6 * 6 + 3 * 2 * 6
    assert record.capacity == pytest.approx(100 * stored / (16 * 6 + 6 * 6 + 3 * 2 * 6))


def test_parameters_counted_by_hand():
    running = start(width=3)
    running.learn(0)
    assert running.method.stored_parameters(running.net) == 16 * 3 + 3 * 3 + 3 * 2
    running.learn(1)
    one, two = width(running.net).values()
    with torch.no_grad():
        for parameter in running.net.parameters():
            parameter.fill_(1.0)
    expected = 16 * one + one * two + 2 * 3 + 2 * two
    assert running.method.stored_parameters(running.net) == expected


def test_a_run_continues_after_some_children():
    one, two = start(), start()
    one.learn(0)
    one.net.add_task(2)
    one.method.begin_task(one.net, FLAT[1])
    fit, count = one.session.training_loop(FLAT[1], one.observe), []

    def interrupted(tasks, epochs=None):
        if len(count) == 2:
            raise KeyboardInterrupt
        count.append(epochs)
        fit(tasks, epochs)

    with pytest.raises(KeyboardInterrupt):
        one.method.fit_task(one.net, FLAT[1], interrupted)
    assert count == [2, 2]
    state = copy.deepcopy(one.method.state_dict())
    two.net.add_task(2)
    two.method.load_state_dict(state, two.net)
    two.net.load_state_dict(copy.deepcopy(one.net.state_dict()))
    whole = start()
    whole.learn(0)
    whole.learn(1)
    two.method.begin_task(two.net, FLAT[1])
    two.method.fit_task(two.net, FLAT[1], two.session.training_loop(FLAT[1], two.observe))
    assert units(two.net) == units(whole.net)
    for name, value in whole.net.state_dict().items():
        assert torch.equal(value, two.net.state_dict()[name]), name


def test_progress_is_of_all_children():
    running, seen = start(), []
    running.execute(seen.append)
    shares = [at.step / at.steps for at in seen if at.task == 1]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_tasks_without_validation_data_are_refused():
    none = Split(FLAT[1].valid.images[:0], FLAT[1].valid.labels[:0])
    stream = TaskStream(
        "none", [replace(t, valid=none) for t in FLAT], [FLAT.test(j) for j in range(3)]
    )
    with pytest.raises(UserError, match="'blobs 1' has none: set valid_fraction") as caught:
        start(stream=stream)
    assert "\n" not in str(caught.value)


def test_a_network_that_cannot_grow_is_refused_by_name():
    net = networks.build("resnet18", (3, 20, 20), 1, width=2)
    net.add_task(2)
    with pytest.raises(UserError, match="rcl cannot add units to ResNet18"):
        RCL().wrap(net, IMAGES, 1)


@pytest.mark.parametrize(
    ("values", "named"), [({"trials": 0}, "trials"), ({"alpha": -1}, "alpha"), ({"hidden": 0}, "h")]
)
def test_bad_settings_are_refused_in_one_line(values, named):
    with pytest.raises(UserError, match=named) as caught:
        methods.make("rcl", **values)
    assert "\n" not in str(caught.value)
