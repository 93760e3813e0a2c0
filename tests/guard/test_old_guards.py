"""Guards that earlier versions have saved are attached, and protect what they did, to the figure.

What they are compared with is stored beside them, so that nothing is compared with itself.
"""

import json
import shutil

import pytest
import torch

from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.guard.saved import SCHEMA, read_file
from guard.loops import task, train
from guard.stored_guards import DATA, GUARD, KINDS, LEARNT_ON, SAID, loaded

STORED = sorted(path.parent for path in DATA.glob(f"*/*/{GUARD}"))
# Of logits of up to 10; another processor rounds otherwise, by less than 1e-5 after learning on.
ROUNDING = 1e-3

of_every_guard = pytest.mark.parametrize(
    "folder", STORED, ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)


def schema(folder):
    content = (folder / GUARD).read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["classgrad"])["schema"]


def assert_same(now, file):
    then = json.loads(file.read_text())
    assert now["ranks"] == then["ranks"]
    moved = (torch.tensor(now["outputs"]) - torch.tensor(then["outputs"])).abs().max()
    assert moved < ROUNDING


@of_every_guard
def test_a_stored_guard_is_attached_and_learns_on_as_it_did(folder, tmp_path):
    kind, model, guard = loaded(folder)
    assert guard.project_every == kind.options.get("project_every", 1)
    assert guard.method.model_dump() == kind.method.model_dump()
    assert len(guard.state_dict()["history"]) == 2
    assert_same(kind.figures(model, guard, 2), folder / SAID)
    kind.learn(model, guard, 2)
    assert_same(kind.figures(model, guard, 3), folder / LEARNT_ON)

    # Saved again, in the present form, it is the same guard.
    guard.save(tmp_path / GUARD)
    again = kind.attached(model.state_dict(), tmp_path / GUARD)
    assert_same(kind.figures(*again, 3), folder / LEARNT_ON)


@pytest.mark.parametrize("name", ["gpm", "sgp", "deferred"])
def test_without_its_guard_a_model_would_have_learnt_on_otherwise(name):
    """The figures can differ: they show whether steps were guarded."""
    folder = DATA / "0.1.0-schema2" / name
    kind, model, guard = loaded(folder)
    guard.detach()
    train(model, kind.optimizer(model), 2, 10)
    then = torch.tensor(json.loads((folder / LEARNT_ON).read_text())["outputs"])
    moved = [(model(task(n)[0][:4]) - then[n]).abs().max() for n in range(3)]
    assert min(moved) > 20 * ROUNDING


def test_a_stored_guard_refuses_weights_that_moved_since(tmp_path):
    for folder in (DATA / "0.1.0-schema1" / "gpm", DATA / "0.1.0-schema2" / "gpm"):
        _, model, guard = loaded(folder)
        guard.detach()
        with torch.no_grad():
            model[0].weight[0] += 0.1
        with pytest.raises(UserError, match="the weights of '0' are not those"):
            attach(model, shutil.copy(folder / GUARD, tmp_path))


def test_there_is_a_guard_of_every_schema_and_every_kind_in_the_present_one():
    assert {schema(folder) for folder in STORED} == set(range(1, SCHEMA + 1))
    assert {folder.name for folder in STORED if schema(folder) == SCHEMA} == KINDS.keys()
    assert all(folder.parent.name.endswith(f"-schema{schema(folder)}") for folder in STORED)


def test_the_stored_guards_are_small_and_hold_what_a_guard_can_keep():
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert len(files) == 4 * len(STORED)
    assert sum(path.stat().st_size for path in files) < 200_000
    held = {(schema(folder), folder.name): read_file(folder / GUARD) for folder in STORED}
    for number in range(1, SCHEMA + 1):
        assert held[number, "cgp"]["task_norms"]
        assert held[number, "frozen_norms"]["frozen_norms"]
    assert held[2, "deferred"]["kept"]
