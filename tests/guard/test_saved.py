"""A guard is saved in one file; what is loaded goes on as if nothing had happened."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.guard.leaks import LeakError
from classgrad.guard.saved import SCHEMA, read_file, write_file
from classgrad.methods import CGP, GPM, SGP, Projected
from classgrad.networks import TaskBatchNorm
from forked import Forked
from guard.loops import everything, loss_of, small, task, train
from oracles.models import built

METHODS: dict[str, Projected] = {
    "cgp": CGP(epsilon=0.99),
    "cgp within a budget": CGP(epsilon=0.99, max_basis_mb=0.02),
    "cgp released": CGP(reading="released"),
    "gpm": everything(),
    "sgp": SGP(epsilon=0.99, alpha=5),
}


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("make", [adam, lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9)])
def test_a_third_task_after_loading_is_learnt_to_the_same_bits(
    name: str, make, tmp_path: Path
) -> None:
    model = small()
    optimizer = make(model)
    guard = attach(model, METHODS[name], optimizer)
    for number in range(2):
        train(model, optimizer, number, 3)
        guard.end_task([task(number)])
    guard.save(tmp_path / "guard.safetensors")
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 2, 3)
    guard.end_task([task(2)])

    other = small()
    other.load_state_dict(weights)
    second = make(other)
    second.load_state_dict(state)
    loaded = attach(other, tmp_path / "guard.safetensors", second)
    assert loaded.method.model_dump() == guard.method.model_dump()
    train(other, second, 2, 3)
    loaded.end_task([task(2)])
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert loaded.layer_ranks() == guard.layer_ranks()
    assert same(loaded.state_dict(), guard.state_dict())


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("guard_first", [True, False])
def test_between_two_projections_a_task_is_resumed_to_the_same_bits(
    guard_first: bool, tmp_path: Path
) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, everything(), optimizer, project_every=4)
    guard.end_task([task(0)])
    train(model, optimizer, 1, 6)
    if guard_first:
        guard.save(tmp_path / "guard")
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    guard.save(tmp_path / "guard")
    train(model, optimizer, 1, 7)

    other = small()
    other.load_state_dict(weights)
    second = torch.optim.AdamW(other.parameters(), lr=0.01)
    second.load_state_dict(state)
    loaded = attach(other, tmp_path / "guard", second)
    assert loaded.project_every == 4
    train(other, second, 1, 7)
    # Also before the next projection: the rest of the step count is the same.
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert same(loaded.state_dict(), guard.state_dict())
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_file_from_before_projections_could_be_deferred(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    state = read_file(path)
    assert state.pop("project_every") == 1
    assert state.pop("kept") == {}
    from classgrad.guard import saved as module

    module.SCHEMA = 1
    try:
        write_file(path, state)
    finally:
        module.SCHEMA = SCHEMA
    assert attach(model, path).project_every == 1


def test_damaged_settings_of_deferred_projections_are_refused(tmp_path: Path) -> None:
    model = small()
    guard = attach(model, everything(), project_every=4)
    guard.end_task([task(0)])
    guard.save(tmp_path / "guard")
    guard.detach()
    state = read_file(tmp_path / "guard")
    kept = state["kept"]
    for damage in (
        {"project_every": 0},
        {"project_every": "4"},
        {"kept": {**kept, "3": kept["3"][1:]}},
        {"kept": {"0": kept["0"]}},
    ):
        write_file(tmp_path / "guard", {**state, **damage})
        with pytest.raises(UserError):
            attach(model, tmp_path / "guard")
    write_file(tmp_path / "guard", state)
    attach(model, tmp_path / "guard")


def test_another_process_goes_on(tmp_path: Path) -> None:
    """Two tasks in this process, the third in another: the bits of three tasks in one."""
    model = small()
    optimizer = adam(model)
    guard = attach(model, METHODS["cgp"], optimizer)
    for number in range(2):
        train(model, optimizer, number, 3)
        guard.end_task([task(number)])
    guard.save(tmp_path / "guard.safetensors")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    other = Forked(["-m", "guard.third_task", str(tmp_path)], Path(__file__).parents[1])
    output = other.communicate(timeout=300)
    assert other.returncode == 0, output
    train(model, optimizer, 2, 3)
    learnt = torch.load(tmp_path / "learnt.pt", weights_only=True)
    assert all(torch.equal(value, learnt[name]) for name, value in model.state_dict().items())


def saved(tmp_path: Path) -> tuple[nn.Module, Path]:
    model = small()
    guard = attach(model, METHODS["cgp"])
    guard.end_task([task(0)])
    guard.save(tmp_path / "guard")
    guard.detach()
    return model, tmp_path / "guard"


def test_other_weights_are_refused_by_name(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    with torch.no_grad():
        model[4].weight[0] += 0.1
    with pytest.raises(UserError, match="the weights of '4' are not those"):
        attach(model, path)
    attach(model, CGP())  # nothing of the refused guard is left


def test_other_biases_are_refused_by_name(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    with torch.no_grad():
        model[3].bias[0] += 0.1
    with pytest.raises(UserError, match=r"the weights of '3\.bias' are not those"):
        attach(model, path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 6)), "layer '3' is 40 x 40 in"),
        (lambda: nn.Sequential(nn.Linear(31, 40)), "layer '0' is 40 x 30 .* and 40 x 31 in the m"),
    ],
)
def test_another_model_is_refused_by_name(make, words: str, tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    with pytest.raises(UserError, match=words):
        attach(built(make), path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none", "there is no file"), (tmp_path, "cannot be read")):
        with pytest.raises(UserError, match=words):
            attach(small(), path)
    guard = attach(small(), CGP())
    with pytest.raises(UserError, match="cannot save to"):
        guard.save(tmp_path)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_file_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match="is damaged"):
        attach(model, path)


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    content = path.read_bytes()
    for place in range(0, len(content), len(content) // 60):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(UserError):
            attach(model, path)
    path.write_bytes(content)
    attach(model, path)


def test_a_newer_schema_says_to_update(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["classgrad"])["schema"] == SCHEMA
    from classgrad.guard import saved as module

    module.SCHEMA += 1
    try:
        guard = attach(model, CGP())
        guard.save(path)
        guard.detach()
    finally:
        module.SCHEMA -= 1
    with pytest.raises(UserError, match=f"schema {SCHEMA + 1}, newer than {SCHEMA}: update"):
        attach(model, path)


def test_a_file_that_is_replaced_is_whole_or_as_before(tmp_path: Path, monkeypatch) -> None:
    model, path = saved(tmp_path)
    before = path.read_bytes()
    guard = attach(model, GPM())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("classgrad.checkpoints.one_file.write_new", full)
    with pytest.raises(UserError, match="No space left"):
        guard.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["guard"]


def test_settings_of_the_guard_are_kept(tmp_path: Path) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)))
    guard = attach(model, GPM(), pretrained=True, on_leak="warn")
    guard.save(tmp_path / "guard")
    guard.detach()
    loaded = attach(model, tmp_path / "guard")
    assert loaded.pretrained
    state = loaded.state_dict()
    assert state["on_leak"] == "warn"
    assert state["frozen_norms"] == ["1"]


def test_a_state_of_something_else_is_refused() -> None:
    guard = attach(small(), GPM())
    with pytest.raises(UserError, match="not of a guard"):
        guard.load_state_dict({**guard.state_dict(), "kind": "learner"})


def test_a_refused_state_leaves_the_guard_as_it_was() -> None:
    model = small()
    guard = attach(model, everything())
    guard.end_task([task(0)])
    before = guard.state_dict()
    with torch.no_grad():
        other = small()
        other[0].weight += 1
    third = attach(other, everything())
    third.end_task([task(1)])
    with pytest.raises(UserError, match="are not those"):
        guard.load_state_dict(third.state_dict())
    assert same(guard.state_dict(), before)


def test_a_refused_state_hides_no_leak() -> None:
    model = small()
    guard = attach(model, everything())
    guard.end_task([task(0)])
    state = guard.state_dict()
    with torch.no_grad():
        model[0].weight += 1
    with pytest.raises(UserError, match="are not those"):
        guard.load_state_dict(state)
    with pytest.raises(LeakError, match="layer '0'"):
        guard.end_task([task(1)])


def test_norms_of_a_state_that_have_more_than_they_can_are_refused() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(30, 8), TaskBatchNorm(8)))
    guard = attach(model, GPM())
    state = guard.state_dict()
    state["task_norms"]["1"]["scale_1"] = torch.ones(8)
    with pytest.raises(UserError, match="scale_1"):
        guard.load_state_dict(state)


def test_norms_with_statistics_of_the_first_task_are_still_fixed_after_loading(
    tmp_path: Path,
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(30, 8), TaskBatchNorm(8, "first"), nn.ReLU(), nn.Linear(8, 2)
        )

    model = built(make).float()
    guard = attach(model, everything())
    model(task(0)[0])
    guard.end_task([task(0)])
    assert model[1].fixed
    guard.save(tmp_path / "guard.safetensors")
    again = built(make).float()
    again.load_state_dict(model.state_dict())
    assert not again[1].fixed
    attach(again, tmp_path / "guard.safetensors")
    assert again[1].fixed
    assert torch.equal(again.train()(task(1)[0]), model.train()(task(1)[0]))


def normed() -> nn.Module:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 6))

    return built(make).float()


@pytest.mark.parametrize("way", ["copied", "pickled"])
def test_a_copy_of_a_guarded_model_is_as_without_and_can_have_a_guard(
    way: str, tmp_path: Path
) -> None:
    model, plain = normed(), normed()
    guard = attach(model, everything())
    guard.end_task([task(0)])
    guard.save(tmp_path / "guard.safetensors")
    copied = copy.deepcopy(model) if way == "copied" else pickle.loads(pickle.dumps(model))
    weights = copy.deepcopy(model.state_dict())
    for each in (copied, plain):
        each.load_state_dict(weights)
        loss_of(each.train(), 1).backward()
    for one, other in zip(copied.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(copied.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)

    copied.load_state_dict(weights)
    optimizer = adam(copied)
    attach(copied, tmp_path / "guard.safetensors", optimizer)
    before = copied.eval()(task(0)[0]).detach()
    train(copied.train(), optimizer, 1)
    after = copied.eval()(task(0)[0]).detach()
    assert float((after - before).norm() / before.norm()) < 1e-5
    assert not torch.equal(copied[0].weight, model[0].weight)
