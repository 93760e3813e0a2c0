"""Models as they are: running statistics, tokens, embeddings, frozen layers, odd batches.

Whatever is refused leaves the model as it was.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.guard.attach import Guard, attach
from classgrad.guard.leaks import LeakMonitor
from classgrad.guard.saved import read_file, write_file
from classgrad.learner.card import tree_digest
from classgrad.methods import CGP, GPM, SGP
from classgrad.methods.projection.base import Projected
from classgrad.networks import TaskBatchNorm
from classgrad.networks.adapted import task_norm
from guard.loops import everything, small, task
from guard.untouched import Before, BeforeGuarded
from oracles.models import built, in_turn, normal


@pytest.fixture(params=["freeze", "task"])
def norms(request: pytest.FixtureRequest) -> str:
    return request.param


def normed() -> nn.Sequential:
    """Return a small network with BatchNorm that has seen some data."""
    model = built(
        lambda: nn.Sequential(
            nn.Conv1d(2, 24, 5, stride=5),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Conv1d(24, 24, 3, padding=1, groups=24),
            nn.BatchNorm1d(24, affine=False),
            nn.Flatten(),
            nn.Linear(72, 6),
        )
    ).float()
    model.train()
    model(normal(16, 2, 15).float())
    return model


def samples(number: int) -> tuple[Tensor, Tensor]:
    x, y = task(number)
    return x.reshape(-1, 2, 15), y


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, steps: int = 5) -> None:
    model.train()
    x, y = samples(number)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_running_statistics_are_kept_also_in_training_mode(pretrained: bool, make) -> None:
    model = normed()
    optimizer = make(model.parameters(), lr=0.01)
    guard = attach(model, everything(), optimizer, pretrained=pretrained)
    start = model[1].running_mean.clone()
    learn(model, optimizer, 0)
    assert torch.equal(model[1].running_mean, start) == pretrained
    guard.end_task([samples(0)])
    statistics = [b.clone() for b in model.buffers()]
    model.eval()
    answers, others = model(samples(0)[0]).detach(), model(samples(1)[0]).detach()
    learn(model, optimizer, 1, 10)
    assert all(map(torch.equal, statistics, model.buffers()))
    model.train()  # the same answers in training mode
    moved = (model(samples(1)[0]) - others).abs().max()
    assert moved > 0.05
    assert (model(samples(0)[0]) - answers).abs().max() < 1e-4 * moved


def test_without_a_guard_statistics_move() -> None:
    model = normed()
    start = model[1].running_mean.clone()
    learn(model, torch.optim.SGD(model.parameters(), lr=0.01), 0)
    assert not torch.equal(model[1].running_mean, start)


def test_depthwise_convolutions_are_frozen_with_the_first_task() -> None:
    model = normed()
    guard = attach(model, everything())
    assert [layer.name for layer in guard.layer_ranks()] == ["0", "6"]
    assert "3.weight" not in guard.method.frozen
    guard.end_task([samples(0)])
    assert "3.weight" in guard.method.frozen


def test_norms_can_have_statistics_for_each_task(tmp_path: Path) -> None:
    model = normed()
    before = model.eval()(samples(0)[0]).detach()
    guard = attach(model, everything(), norms="task")
    assert isinstance(model[1], TaskBatchNorm)
    assert torch.allclose(model(samples(0)[0]), before, atol=1e-6)
    guard.end_task([samples(0)])
    model.eval()
    guard.use_task(0)
    answers = model(samples(0)[0]).detach()
    guard.use_task(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard.watch(optimizer)
    learn(model, optimizer, 1)
    model.eval()
    guard.use_task(0)
    assert torch.allclose(model(samples(0)[0]), answers, atol=1e-4)
    guard.save(tmp_path / "guard")
    other = normed()
    other.load_state_dict(model.state_dict(), strict=False)  # all but the norms
    loaded = attach(other, tmp_path / "guard")
    other.eval()
    for number in range(2):
        guard.use_task(number)
        loaded.use_task(number)
        assert torch.equal(other(samples(1)[0]), model(samples(1)[0]))


class Tokens(nn.Module):
    """Word ids through embeddings, a class token and a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 12)
        self.token = nn.Parameter(torch.randn(1, 1, 12, generator=torch.Generator().manual_seed(1)))
        self.scale = nn.Parameter(torch.ones(12))
        self.mix = nn.Linear(12, 12)
        self.head = nn.Linear(12, 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(ids), -1, -1), self.words(ids)], 1)
        return self.head((x + self.scale * self.mix(x).relu()).mean(1))


@pytest.mark.parametrize("pretrained", [True, False])
def test_tokens_embeddings_and_scales_are_frozen(pretrained: bool) -> None:
    model = built(Tokens).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    guard = attach(model, everything(), optimizer, pretrained=pretrained)
    others = ["token", "scale", "words.weight"]

    def step(seed: int) -> Tensor:
        ids = (normal(6, 4, seed=seed).abs() * 7).long().clamp(max=19)
        optimizer.zero_grad()
        functional.cross_entropy(model(ids), in_turn(6, 6)).backward()
        optimizer.step()
        return ids

    start = {name: model.get_parameter(name).detach().clone() for name in others}
    ids = step(0)
    learnt = [not torch.equal(model.get_parameter(name), value) for name, value in start.items()]
    assert learnt == 3 * [not pretrained]
    guard.end_task([(ids, in_turn(6, 6))])
    answers = model(ids).detach()
    for seed in range(1, 6):
        step(seed)
    assert torch.allclose(model(ids), answers, atol=1e-4)
    assert set(others) <= set(guard.method.frozen)


def test_a_weight_shared_with_an_embedding_is_refused() -> None:
    model = built(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)))
    model[1].weight = model[0].weight
    with pytest.raises(UserError, match=r"'0\.weight' is also the weight of a Linear"):
        attach(model, GPM())


class Own(nn.Module):
    """A layer of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


def test_a_layer_of_ones_own_is_refused_with_the_line_to_write() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 4), Own()))
    line = r"classgrad\.register_layer\(Own, classgrad\.core\.LayerKind\(\)\)"
    with pytest.raises(UserError, match=rf"'1\.weight' of a Own cannot be protected.*{line}"):
        attach(model, GPM())


def test_a_frozen_backbone_with_a_head() -> None:
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, everything(), optimizer)
    assert [layer.name for layer in guard.layer_ranks()] == ["3", "4"]
    guard.end_task([task(0)])


def test_a_model_whose_every_layer_is_frozen_has_nothing_to_protect() -> None:
    model = normed().requires_grad_(False)
    guard = attach(model, CGP())
    assert guard.layer_ranks() == []
    guard.end_task([samples(0)])
    answers = model.eval()(samples(0)[0])
    model.train()(samples(1)[0])
    assert torch.equal(model.eval()(samples(0)[0]), answers)


def test_a_model_without_parameters_is_refused(norms: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.ReLU())
    before = Before(model)
    with pytest.raises(UserError, match="no weight matrix to protect"):
        attach(model, CGP(), norms=norms)
    assert before.changed() == []


class Objects(nn.Module):
    """Takes keyword arguments and returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(30, 6)

    def forward(self, values: Tensor, gain: Tensor) -> dict[str, Tensor]:
        return {"loss": gain.sum(), "logits": self.inner(values * gain)}


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Windows(nn.Module):
    """Takes two tensors, and gives a layer several parts of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(10, 2)

    def forward(self, pair: Pair) -> Tensor:
        return self.inner((pair.left + pair.right).reshape(-1, 10)).reshape(-1, 6)


def test_inputs_of_windows_that_are_named_tuples() -> None:
    x, y = task(0)
    guard = attach(built(Windows).float(), CGP(epsilon=1.0))
    guard.end_task([(Pair(x, x), y)])
    assert guard.layer_ranks()[0].rank == 10


def test_batches_and_outputs_that_are_mappings() -> None:
    model = built(Objects).float()
    x, y = task(0)
    guard = attach(model, CGP(epsilon=1.0))
    guard.end_task([{"values": x, "gain": torch.ones(1), "labels": y}])
    assert guard.layer_ranks()[0].rank == len(x)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": torch.ones(2, 30)}, "neither .inputs, labels. nor a mapping"),
        (torch.ones(2, 30), "it is Tensor"),
        ((torch.ones(2, 30), [0, 1]), "labels of a batch of the loader are list: give a tensor"),
        ((torch.ones(2, 30), torch.ones(2, 30), torch.tensor([0, 1])), "it is tuple"),
        ((torch.ones(2, 30), torch.ones(2)), "give one whole number for each"),
        ((torch.full((2, 30), torch.nan), torch.tensor([0, 1])), "not a finite number"),
        (
            (torch.ones(0, 30), torch.ones(0, dtype=torch.int64)),
            "batch of the loader has no sample",
        ),
    ],
)
@pytest.mark.parametrize("earlier", [0, 1])
def test_other_batches_are_refused_in_one_line(batch, words: str, earlier: int, norms: str) -> None:
    guard = attach(nn.Sequential(nn.Unflatten(1, (2, 15)), *normed()), CGP(), norms=norms)
    for _ in range(earlier):
        guard.end_task([task(0)])
    before = BeforeGuarded(guard)
    with pytest.raises(UserError, match=words):
        guard.end_task([task(1), batch])
    assert before.changed() == []
    assert any(layer.rank for layer in guard.layer_ranks()) == bool(earlier)


def test_other_outputs_are_refused_in_one_line() -> None:
    guard = attach(small(), CGP())
    before = BeforeGuarded(guard)
    with pytest.raises(UserError, match="returns int, not a tensor"):
        guard.end_task([task(0)], forward=lambda x: 1)
    with pytest.raises(UserError, match=r"output for 8 samples has shape \(8,\)"):
        guard.end_task([task(0)], forward=lambda x: guard.model(x)[:, 0])
    assert before.changed() == []


# What is refused changes nothing.


@pytest.mark.parametrize("pretrained", [True, False])
def test_a_second_guard_changes_nothing(norms: str, pretrained: bool) -> None:
    model = normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = attach(model, everything(), optimizer)
    for number in range(2):
        before = BeforeGuarded(first, optimizer)
        with pytest.raises(UserError, match="has a guard already"):
            attach(model, GPM(), optimizer, norms=norms, pretrained=pretrained)
        assert before.changed() == []
        first.end_task([samples(number)])


def own_layer(model: nn.Sequential) -> None:
    model.append(Own())


def computed_weight(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[6])


def shared_weight(model: nn.Sequential) -> None:
    model.append(built(lambda: nn.Linear(72, 6)).float())
    model[7].weight = model[6].weight


def embedded_weight(model: nn.Sequential) -> None:
    model.append(built(lambda: nn.Embedding(6, 72)))
    model[7].weight = model[6].weight


UNPROTECTABLE = [own_layer, computed_weight, shared_weight, embedded_weight]


@pytest.mark.parametrize("spoil", UNPROTECTABLE)
def test_a_layer_that_cannot_be_protected_changes_nothing(
    spoil: Callable[[nn.Sequential], None], norms: str
) -> None:
    model = normed()
    spoil(model)
    before = Before(model)
    with pytest.raises(UserError, match=r"cannot be protected|share one|is also the weight"):
        attach(model, GPM(), norms=norms, pretrained=True, project_every=4)
    assert before.changed() == []


def test_a_setting_for_a_layer_that_is_not_there_changes_nothing(norms: str) -> None:
    model = normed()
    before = Before(model)
    with pytest.raises(UserError, match="none"):
        attach(model, GPM(energy={"none": 0.9, "*": 0.95}), norms=norms, pretrained=True)
    assert before.changed() == []


def test_attaching_that_is_interrupted_changes_nothing(norms: str, monkeypatch) -> None:
    model = normed()
    before = Before(model)
    there: list[str] = []

    def interrupt(*_: object) -> None:
        there.extend(before.changed())
        raise KeyboardInterrupt

    monkeypatch.setattr(LeakMonitor, "protect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        attach(model, GPM(), norms=norms, pretrained=True, project_every=4)
    assert there  # there was something to put back
    assert before.changed() == []


def test_norms_of_which_some_were_converted_are_put_back(monkeypatch) -> None:
    model = normed()
    before = Before(model)

    def failing(layer: nn.BatchNorm1d) -> TaskBatchNorm:
        if not layer.affine:
            raise MemoryError
        return task_norm(layer)

    monkeypatch.setattr("classgrad.guard.attach.task_norm", failing)
    with pytest.raises(MemoryError):
        attach(model, GPM(), norms="task")
    assert before.changed() == []


def saved_guard(norms: str, folder: Path) -> Path:
    """Save a guard that has all kinds of hooks; it fits the model that `normed` returns."""
    guard = attach(normed(), everything(), norms=norms, pretrained=True, project_every=4)
    guard.end_task([samples(0)])
    guard.save(folder / "guard")
    return folder / "guard"


def in_state(change: Callable[[dict[str, Any]], object]) -> Callable[[nn.Module, Path], None]:
    def damage(_model: nn.Module, path: Path) -> None:
        state = read_file(path)
        change(state)
        write_file(path, state)

    return damage


def other_weights(model: nn.Module, _path: Path) -> None:
    with torch.no_grad():
        model[6].weight += 0.1


def other_layers(model: nn.Module, _path: Path) -> None:
    model[6] = built(lambda: nn.Linear(72, 7)).float()


def no_second_norm(model: nn.Module, _path: Path) -> None:
    model[4] = nn.Identity()


def cut_short(_model: nn.Module, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


# From what is noticed first to what is noticed last.
DAMAGES: dict[str, Callable[[nn.Module, Path], None]] = {
    "cut short": cut_short,
    "of a learner": in_state(lambda s: s.update(kind="learner")),
    "of an unknown method": in_state(lambda s: s["method"].update(name="none")),
    "with a setting that is out of bounds": in_state(lambda s: s["method"].update(energy=2.0)),
    "for other layers": other_layers,
    "without a history": in_state(lambda s: s.pop("history")),
    "for other norms": no_second_norm,
    "with a norm of another size": in_state(
        lambda s: s["task_norms"].update({"1": {"scale_0": torch.ones(3)}})
    ),
    "without what was frozen": in_state(lambda s: s["memory"].pop("frozen")),
    "with a parameter that is not there": in_state(lambda s: s["memory"]["frozen"].append("none")),
    "with a basis of another size": in_state(
        lambda s: s["memory"]["bases"].update({"6": torch.eye(5, dtype=torch.float64)})
    ),
    "without what weights are compared with": in_state(lambda s: s["references"].clear()),
    "for other weights": other_weights,
    "with something of another shape to restore": in_state(
        lambda s: s["kept"].update({"6": torch.ones(3)})
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_file_that_is_refused_changes_nothing(kind: str, norms: str, tmp_path: Path) -> None:
    path, model = saved_guard(norms, tmp_path), normed()
    DAMAGES[kind](model, path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = Before(model, optimizer)
    with pytest.raises(UserError):
        attach(model, path, optimizer)
    assert before.changed() == []
    attach(model, GPM(), optimizer)


def test_loading_that_is_interrupted_changes_nothing(
    norms: str, tmp_path: Path, monkeypatch
) -> None:
    path, model = saved_guard(norms, tmp_path), normed()
    before = Before(model)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LeakMonitor, "load_kept", interrupt)
        with pytest.raises(KeyboardInterrupt):
            attach(model, path)
    assert before.changed() == []
    attach(model, path)
    assert before.changed() != []


def test_a_refused_state_leaves_norms_as_they_were(norms: str) -> None:
    """A guard after one task gets the state of one after three, for other weights."""

    def attached(model: nn.Module, pretrained: bool) -> Guard:
        guard = attach(model, everything(), norms=norms, pretrained=pretrained)
        if norms == "task":
            guard.end_task([samples(0)])
        return guard

    guard = attached(normed(), pretrained=False)
    other = normed()
    other_weights(other, Path())
    second = attached(other, pretrained=True)
    for number in range(1, 3):
        second.end_task([samples(number)])
    before = BeforeGuarded(guard)
    with pytest.raises(UserError, match="are not those"):
        guard.load_state_dict(second.state_dict())
    assert before.changed() == []


def test_what_is_no_optimiser_changes_nothing(norms: str, tmp_path: Path) -> None:
    saved, model = saved_guard(norms, tmp_path), normed()
    several: Any = [torch.optim.SGD(model.parameters(), lr=0.1)]
    for method in (everything(), saved):
        before = Before(model)
        with pytest.raises(UserError, match=r"list is no torch\.optim\.Optimizer"):
            attach(model, method, several, norms=norms, pretrained=True)
        assert before.changed() == []
    guard = attach(model, everything())
    before = BeforeGuarded(guard, several[0])
    with pytest.raises(UserError, match=r"list is no torch\.optim\.Optimizer"):
        guard.watch(several)
    with pytest.raises(UserError, match=r"list is no torch\.optim\.Optimizer"), guard.step(several):
        pass
    assert before.changed() == []


def test_what_is_no_model_is_refused() -> None:
    given: Any = normed().parameters()
    with pytest.raises(UserError, match=r"generator is no torch\.nn\.Module"):
        attach(given, everything())


def freeze(model: nn.Sequential) -> None:
    model[6].requires_grad_(False)


def unfreeze(model: nn.Sequential) -> None:
    model[8].requires_grad_(True)


def add(model: nn.Sequential) -> None:
    model.append(built(lambda: nn.Linear(6, 6)).float())


def replace(model: nn.Sequential) -> None:
    model[6] = built(lambda: nn.Linear(72, 6)).float()


def widen(model: nn.Sequential) -> None:
    """Make room for more classes in the layer that is there."""
    layer = model[6]
    layer.out_features = 8
    for name in ("weight", "bias"):
        values = layer.get_parameter(name).detach()
        setattr(layer, name, nn.Parameter(torch.cat([values, values[:2]])))


def take_out(model: nn.Sequential) -> None:
    model[6] = nn.Identity()


def compute(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[6])


CHANGES = [freeze, unfreeze, add, replace, widen, take_out]


def with_frozen_layer() -> nn.Sequential:
    model = normed().extend([nn.ReLU(), built(lambda: nn.Linear(6, 6)).float()])
    model[8].requires_grad_(False)
    return model


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_layer_that_changed_since_is_refused_and_nothing_else_changes(
    change: Callable[[nn.Sequential], None], earlier: int, norms: str
) -> None:
    model = with_frozen_layer()
    guard = attach(model, CGP(), torch.optim.SGD(model.parameters(), lr=0.1), norms=norms)
    for _ in range(earlier):
        guard.end_task([samples(0)])
    state = guard.state_dict()
    change(model)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    before = BeforeGuarded(guard, other)
    for call in (
        lambda: guard.end_task([samples(1)]),
        lambda: guard.watch(other),
        lambda: guard.load_state_dict(state),
    ):
        with pytest.raises(UserError, match=r"layer '\d' was added, removed, replaced, frozen"):
            call()
        assert before.changed() == []
    guard.detach()
    assert not any("forward" in vars(module) for module in model.modules())
    attach(model, CGP())  # as it is now


def test_parameters_that_were_assigned_are_refused_before_a_step() -> None:
    model = normed()
    guard = attach(model, CGP())
    guard.end_task([samples(0)])
    model.load_state_dict(model.state_dict(), assign=True)  # takes the tensors as they are
    before = BeforeGuarded(guard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for call in (lambda: guard.watch(optimizer), lambda: guard.end_task([samples(1)])):
        with pytest.raises(UserError, match=r"weight of layer '.*' is another parameter than when"):
            call()
    assert not before.changed()


def test_a_layer_that_is_as_it_was_again_is_not_refused() -> None:
    model = with_frozen_layer()
    guard = attach(model, CGP())
    guard.end_task([samples(0)])
    ranks = guard.layer_ranks()
    freeze(model)
    with pytest.raises(UserError, match="frozen"):
        guard.end_task([samples(1)])
    assert guard.layer_ranks() == ranks
    model[6].requires_grad_(True)
    guard.end_task([samples(1)])
    assert guard.layer_ranks() != ranks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (widen, r"'6' was 6 x 72 when the guard was attached and is 8 x 72 now"),
        (replace, r"'6\.bias', which is frozen, was changed"),
        (take_out, r"'6\.bias', which is frozen, was removed from the model"),
        (compute, r"the weight of layer '6' is not a parameter of it any more"),
    ],
)
def test_the_next_step_of_a_model_whose_layer_changed_is_refused_in_one_line(
    change: Callable[[nn.Sequential], None], words: str
) -> None:
    model = normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, CGP(), optimizer)
    guard.end_task([samples(0)])
    change(model)
    with pytest.raises(UserError, match=words):
        learn(model, optimizer, 1, 1)
    assert guard.layer_ranks()


METHODS = [
    CGP(),
    CGP(reading="released"),
    CGP(max_basis_mb=0.005),
    GPM(),
    GPM(max_basis_mb=0.005),
    SGP(max_basis_mb=0.005),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("place", [(Projected, "_held"), (LeakMonitor, "protect")])
def test_the_end_of_a_task_that_is_interrupted_changes_nothing(
    method: Projected, place: tuple[type, str], norms: str, monkeypatch
) -> None:
    model, other = normed(), normed()
    guard, twin = attach(model, method, norms=norms), attach(other, method, norms=norms)
    for one in (guard, twin):
        one.end_task([samples(0)])
    before = BeforeGuarded(guard)
    there: list[str] = []

    def interrupt(*_: object) -> None:
        there.extend(before.changed())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            guard.end_task([samples(1)])
    assert "ranks" in there  # there was something to put back
    # Hooks of weights with scaled directions are made anew.
    assert [name for name in before.changed() if not name.startswith("_backward_hooks")] == []
    for one in (guard, twin):
        one.end_task([samples(1)])
    ours, wanted = (tree_digest(one.state_dict()["memory"]) for one in (guard, twin))
    assert ours == wanted


def test_after_a_refused_end_of_a_task_steps_are_those_there_would_have_been() -> None:
    """To the bit: momentum that has seen projected gradients only is still known as such."""
    weights = []
    for refused in (False, True):
        model = normed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        guard = attach(model, everything(), optimizer)
        guard.end_task([samples(0)])
        learn(model, optimizer, 1, 3)
        if refused:
            with pytest.raises(UserError, match="no sample"):
                guard.end_task([])
        learn(model, optimizer, 1, 3)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_a_detached_guard_is_of_no_use(tmp_path: Path) -> None:
    """Saved or used, it would look like a guard and protect nothing."""
    model = normed()
    guard = attach(model, everything())
    guard.end_task([samples(0)])
    state = guard.state_dict()
    guard.detach()
    before = Before(model)
    for call in (
        lambda: guard.watch(torch.optim.SGD(model.parameters(), lr=0.1)),
        lambda: guard.end_task([samples(1)]),
        lambda: guard.save(tmp_path / "guard"),
        lambda: guard.load_state_dict(state),
    ):
        with pytest.raises(UserError, match="this guard was detached"):
            call()
    assert before.changed() == []
    assert not list(tmp_path.iterdir())


def test_a_task_that_there_is_not_cannot_be_used() -> None:
    model = normed()
    guard = attach(model, everything(), norms="task")
    guard.end_task([samples(0)])
    for number in (-1, 2):
        before = BeforeGuarded(guard)
        with pytest.raises(UserError, match=rf"no task {number}: give a number from 0 to 1"):
            guard.use_task(number)
        assert before.changed() == []


def test_a_class_instead_of_a_method_is_refused() -> None:
    kind: Any = GPM
    with pytest.raises(UserError, match=r"the class GPM is not a method: give GPM\(\)"):
        attach(normed(), kind)
