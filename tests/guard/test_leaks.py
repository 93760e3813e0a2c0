"""Weights that something else than a guarded step has moved are noticed, and by how far."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from classgrad.errors import Diverged, UserError
from classgrad.guard.attach import Guard, attach
from classgrad.guard.leaks import NOTICED, STEPS, LeakError, LeakWarning
from classgrad.methods import CGP, GPM, SGP
from guard.loops import everything, loss_of, small, task, train
from guard.untouched import BeforeGuarded
from oracles.models import built, in_turn, normal


def guarded(on_leak: str = "raise") -> tuple[nn.Module, torch.optim.Optimizer, Guard]:
    """Return a model that has learnt a task, a watched optimiser, and the guard."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard = attach(model, everything(), optimizer, on_leak=on_leak)
    train(model, optimizer, 0)
    guard.end_task([task(0)])
    train(model, optimizer, 1, 2)
    return model, optimizer, guard


def unwatched(model: nn.Module) -> None:
    other = torch.optim.SGD(model.parameters(), lr=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    other.step()


def fused(model: nn.Module) -> None:
    other = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    other.step()


def edit(model: nn.Module) -> None:
    with torch.no_grad():
        model[3].weight[5] += 1


def edit_data(model: nn.Module) -> None:
    model[0].weight.data.mul_(1.1)


def load(model: nn.Module) -> None:
    model.load_state_dict({n: v + 0.1 for n, v in model.state_dict().items()})


def average(model: nn.Module) -> None:
    """Copy in a moving average that began before the task was protected."""
    start = small().state_dict()
    for name, parameter in model.named_parameters():
        parameter.data.lerp_(start[name], 0.2)


def bias(model: nn.Module) -> None:
    with torch.no_grad():
        model[3].bias += 0.1


def halved(model: nn.Module) -> None:
    model.half()
    model.float()


HALF = "weights rounded to half precision"
LEAKS: dict[str, Callable[[nn.Module], None]] = {
    "an optimiser that is not watched": unwatched,
    "a fused optimiser that is not watched": fused,
    "an edit of one row": edit,
    "an edit that PyTorch does not see": edit_data,
    "other weights loaded": load,
    "a moving average": average,
    "an edit of a bias": bias,
    HALF: halved,
}


@pytest.mark.parametrize("kind", LEAKS)
@pytest.mark.parametrize("when", ["step", "end_task", "save", "backward"])
def test_a_leak_is_noticed(kind: str, when: str, tmp_path) -> None:
    model, optimizer, guard = guarded()
    before = guard.layer_ranks()
    for parameter in model.parameters():
        parameter.grad = None
    LEAKS[kind](model)
    actions: dict[str, Callable[[], object]] = {
        "end_task": lambda: guard.end_task([task(1)]),
        "save": lambda: guard.save(tmp_path / "guard"),
        "step": lambda: [optimizer.step() for _ in range(STEPS + 1)],
        "backward": lambda: train(model, optimizer, 1, STEPS + 1),
    }
    with pytest.raises(LeakError, match=r"layer '\d'|which is frozen"):
        actions[when]()
    assert guard.layer_ranks() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["an optimiser that is not watched", "an edit of one row"])
def test_a_change_that_pytorch_sees_is_noticed_before_the_next_step(kind: str) -> None:
    model, optimizer, _ = guarded()
    LEAKS[kind](model)
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(LeakError):
        optimizer.step()
    assert all(map(torch.equal, weights, model.parameters()))


def test_the_message_names_the_layer_and_how_far_it_moved() -> None:
    model, optimizer, guard = guarded()
    basis = guard.method.subspaces["3"].basis.float()
    with torch.no_grad():
        move = 0.01 * model[3].weight.norm() / len(model[3].weight) ** 0.5
        model[3].weight += move * basis[:, 0]
    with pytest.raises(LeakError, match=r"layer '3' .* by (0\.0[01]\d*) of its length"):
        optimizer.step()


def test_what_is_no_leak_is_not_noticed() -> None:
    model, optimizer, guard = guarded()
    free = torch.eye(40) - (lambda s: s @ s.T)(guard.method.subspaces["3"].basis.float())
    with torch.no_grad():
        model[3].weight += normal(40, 40).float() @ free  # along free directions
    state = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1, 3)
    model.load_state_dict(state)  # back to weights that keep the first task as well
    average = {n: (v + state[n]) / 2 for n, v in model.state_dict().items()}
    model.load_state_dict(average)
    train(model, optimizer, 1, 3)
    guard.end_task([task(1)])


@pytest.mark.parametrize("kind", LEAKS)
def test_a_warning_instead(kind: str) -> None:
    model, optimizer, guard = guarded("warn")
    LEAKS[kind](model)
    with pytest.warns(LeakWarning, match=r"layer '\d'|which is frozen"):
        guard.end_task([task(1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each leak is reported once
        train(model, optimizer, 1, STEPS)


@pytest.mark.parametrize("kind", LEAKS)
def test_weights_are_moved_back(kind: str) -> None:
    model, optimizer, guard = guarded("restore")
    answers = model(task(0)[0]).detach()
    LEAKS[kind](model)
    assert not torch.allclose(model(task(0)[0]), answers, atol=1e-4 if kind == HALF else 1e-2)
    with pytest.warns(LeakWarning, match="moved back"):
        guard.end_task([task(1)])
    # What is too small to be noticed is not undone.
    assert torch.allclose(model(task(0)[0]), answers, atol=1e-3)
    train(model, optimizer, 0, 2)


def test_a_change_that_is_meant_is_accepted() -> None:
    model, optimizer, guard = guarded()
    unwatched(model)
    guard.accept_weights()
    train(model, optimizer, 1, STEPS)
    guard.end_task([task(1)])


@pytest.mark.parametrize("method", [SGP(epsilon=1.0), CGP(reading="released", eta=0.5)])
def test_scaled_steps_are_no_leak_and_others_are(method: GPM | CGP) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, method, optimizer)
    for number in range(2):
        train(model, optimizer, number, 3)
        guard.end_task([task(number)])
    train(model, optimizer, 0, STEPS)
    unwatched(model)
    with pytest.raises(LeakError):
        optimizer.step()


@pytest.mark.parametrize("share", [0.5 * NOTICED, 2 * NOTICED])
def test_how_small_a_move_is_noticed(share: float) -> None:
    """Of 20 random moves of one layer along protected directions, all or none."""
    noticed = 0
    for seed in range(20):
        model, _, guard = guarded()
        basis = guard.method.subspaces["3"].basis
        move = normal(40, basis.shape[1], seed=seed) @ basis.T
        with torch.no_grad():
            weight = model[3].weight
            weight += (move * (share * weight.norm() / move.norm())).float()
        try:
            guard.end_task([task(1)])
        except LeakError:
            noticed += 1
    assert noticed == (20 if share > NOTICED else 0)


def test_after_how_many_steps_an_unseen_edit_of_one_row_is_noticed() -> None:
    """In at most fifty, wherever the row is."""
    for row in range(0, 40, 7):
        model, optimizer, _ = guarded()
        model[3].weight.data[row] += 0.5
        with pytest.raises(LeakError):
            train(model, optimizer, 1, STEPS)


def test_guarded_steps_do_not_drift_towards_the_limit() -> None:
    model, optimizer, guard = guarded()
    train(model, optimizer, 1, 100)
    state = guard._monitor.state_dict()
    guard.accept_weights()
    for name, values in guard._monitor.state_dict().items():
        assert float((values - state[name]).norm()) < 0.1 * NOTICED * float(1 + values.norm())


def between_projections(on_leak: str = "raise") -> tuple[nn.Module, torch.optim.Optimizer, Guard]:
    """Return a model whose last two steps are still to be projected."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, everything(), optimizer, on_leak=on_leak, project_every=16)
    train(model, optimizer, 0)
    guard.end_task([task(0)])
    train(model, optimizer, 1, 18)
    return model, optimizer, guard


def looked_at(model: nn.Module) -> None:
    with torch.no_grad():
        model(task(1)[0])


WHOLE = [kind for kind in LEAKS if kind not in ("an edit of one row", HALF)]


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("when", ["step", "evaluation", "end_task", "state_dict"])
def test_between_projections_a_move_of_whole_weights_is_noticed(kind: str, when: str) -> None:
    model, optimizer, guard = between_projections()
    LEAKS[kind](model)
    actions: dict[str, Callable[[], object]] = {
        "end_task": lambda: guard.end_task([task(1)]),
        "evaluation": lambda: looked_at(model),
        "state_dict": model.state_dict,
        "step": lambda: train(model, optimizer, 1, STEPS + 1),
    }
    if kind == "other weights loaded" and when in ("evaluation", "state_dict"):
        actions[when]()  # loading projects first, and then a look is as for any other edit
        when = "end_task"
    elif kind == "an edit of a bias" and when in ("evaluation", "state_dict"):
        when = "end_task"  # only weights that wait for a projection are looked at then
    with pytest.raises(LeakError, match=r"layer '\d'|which is frozen"):
        actions[when]()


def test_between_projections_guarded_steps_are_no_leak() -> None:
    model, optimizer, guard = between_projections()
    state = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1, 2 * STEPS + 3)
    model.load_state_dict(state)  # weights that keep the first task
    train(model, optimizer, 1, 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])  # the same, without a state dict's hooks
    train(model, optimizer, 1, 3)
    guard.end_task([task(1)])
    train(model, optimizer, 0, 3)


@pytest.mark.parametrize("on_leak", ["raise", "warn", "restore"])
def test_what_is_not_noticed_between_projections_is_projected_away(on_leak: str) -> None:
    """A move of a row that is not compared is not told from the guarded steps before it."""
    model, _, guard = between_projections(on_leak)
    answers = model.eval()(task(0)[0]).detach()
    train(model.train(), guarded_optimizer(guard), 1, 2)
    reference = guard._monitor._references["weight 3"]
    row = next(r for r in range(40) if (r - reference._offset) % reference.sparse)
    with torch.no_grad():
        model[3].weight[row] += 1
    assert not torch.allclose(model(task(0)[0]), answers, atol=1e-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.allclose(model.eval()(task(0)[0]), answers, atol=1e-4)


def guarded_optimizer(guard: Guard) -> torch.optim.Optimizer:
    return next(iter(guard._optimizers))


@pytest.mark.parametrize("on_leak", ["warn", "restore"])
@pytest.mark.parametrize("when", ["step", "evaluation"])
def test_between_projections_a_noticed_move_is_moved_back(on_leak: str, when: str) -> None:
    model, optimizer, guard = between_projections(on_leak)
    answers = model.eval()(task(0)[0]).detach()
    train(model.train(), optimizer, 1, 2)
    for layer in (0, 3, 4):
        model[layer].weight.data.mul_(1.1)
    with pytest.warns(LeakWarning, match="moved back"):
        train(model, optimizer, 1, 1) if when == "step" else looked_at(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.end_task([task(1)])
    assert torch.allclose(model(task(0)[0]), answers, atol=1e-4)


@pytest.mark.parametrize("seen", [True, False])
def test_between_projections_a_change_that_is_meant_is_accepted(seen: bool) -> None:
    model, optimizer, guard = between_projections()
    inside = guard.method.subspaces["3"].basis.float()
    weight = model[3].weight
    if seen:
        with torch.no_grad():
            weight.mul_(1.1)
    else:
        weight.data.mul_(1.1)
    meant, other = weight.detach() @ inside, model[0].weight.detach().clone()
    guard.accept_weights()
    assert torch.allclose(weight @ inside, meant)
    assert not torch.equal(model[0].weight, other)  # of the others, steps are projected
    train(model, optimizer, 1, STEPS)
    guard.end_task([task(1)])
    assert torch.allclose(weight.detach() @ inside, meant, atol=1e-5)


def test_a_step_that_fails_is_projected_or_noticed() -> None:
    class Failing(torch.optim.AdamW):
        def step(self, closure=None):
            super().step()
            raise ArithmeticError

    model, _, guard = between_projections()
    answers = model.eval()(task(0)[0]).detach()
    failing = Failing(model.train().parameters(), lr=0.1)
    guard.watch(failing)
    with pytest.raises(ArithmeticError):
        train(model, failing, 1, 1)
    assert torch.allclose(model.eval()(task(0)[0]), answers, atol=1e-4)


def test_a_model_that_was_moved_to_another_device_is_refused() -> None:
    model, _, guard = guarded()
    model[0].weight = nn.Parameter(model[0].weight.to("meta"))
    before = BeforeGuarded(guard)
    with pytest.raises(UserError, match="moved from cpu to meta after the guard was attached"):
        guard.end_task([task(1)])
    assert before.changed() == []


def test_groups_of_a_convolution_and_parts_of_attention_are_compared() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 8, 2, groups=2)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).transpose(1, 2)
            return self.attention(x, x, x)[0].mean(1)

    edits: dict[str, Callable[[Model], Tensor]] = {
        r"conv\[1\]": lambda model: model.conv.weight[5],
        r"attention\[key\]": lambda model: model.attention.in_proj_weight[9],
        r"attention.out_proj": lambda model: model.attention.out_proj.weight[0],
    }
    for name, get in edits.items():
        model = built(Model)
        guard = attach(model, CGP(epsilon=0.9, correct_only=False))
        guard.end_task([(normal(6, 4, 5), in_turn(6, 2))])
        with torch.no_grad():
            get(model).add_(1)
        with pytest.raises(LeakError, match=f"layer '{name}'"):
            guard.end_task([(normal(6, 4, 5, seed=1), in_turn(6, 2))])


def test_before_anything_is_protected_anything_may_change() -> None:
    model = small()
    guard = attach(model, everything())
    unwatched(model)
    loss_of(model, 0).backward()
    guard.end_task([task(0)])


def test_weights_that_have_diverged_are_no_leak() -> None:
    model, optimizer, _ = guarded()
    optimizer.param_groups[0]["lr"] = 1e30
    with pytest.raises(Diverged, match=r"has weights that are not finite numbers: load earlier"):
        train(model, optimizer, 1, STEPS)
