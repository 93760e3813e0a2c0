"""docs/state.md names all that a state holds, and what it says about images is so."""

import re
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad import CGP, GPM, Learner, Training, UserError
from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import Store
from classgrad.learner.learnt import LearntTask
from classgrad.methods import METHODS
from learner.stored_states import DATA, made, points
from oracles.models import built
from states import same

PAGE = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
QUICK = Training(epochs=2, batch_size=8, learning_rate=0.1)
TAKEN = [name for name, method in METHODS.items() if method.rehearsal_free]


def rows(head):
    """Return the cells of the table that begins with this head."""
    lines = PAGE.split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def keys(cell):
    return re.findall(r"`(\w+)`", cell)


def learnt(method, images, **values):
    """Return a learner of one task with a class for each image."""
    trunk = built(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8))).float()
    learner = Learner(trunk, method, training=QUICK, **values)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "class .* has one training image")
        learner.learn("one", (images, list(range(len(images)))))
    return learner


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def seen(images):
    """Return what the first layer sees of images, of length one, in float64."""
    return functional.normalize(((images.double() - 0.5) / 0.25).flatten(1), dim=1)


@pytest.mark.docs
def test_every_key_of_a_state_is_on_the_page():
    found = [name for row in rows("| key | type | meaning |") for name in keys(row[0])]
    assert set(made(GPM()).state_dict()) <= set(found)
    found = [name for row in rows("| key of a task | type |") for name in keys(row[0])]
    assert {field.name for field in fields(LearntTask)} <= set(found)


@pytest.mark.docs
@pytest.mark.parametrize("part", ["classifier", "movement"])
def test_every_key_of_what_is_kept_of_classes_is_on_the_page(images, part):
    found = [name for row in rows(f"| key of `{part}` | type | meaning |") for name in keys(row[0])]
    assert sorted(found) == sorted(learnt(GPM(), images).state_dict()[part])


def test_of_a_single_image_products_are_that_image_and_the_mean_its_embedding(images):
    learner = learnt(GPM(), images[:1], kept_features=0)
    state = learner.state_dict()
    products = learner.movement.products["1"]
    x = learner.transform(images[:1]).flatten()
    assert torch.allclose(products, torch.outer(x, x), rtol=1e-5)
    assert not state["classifier"]["kept_features"].numel()
    embedding = functional.normalize(learner.net.embed(learner.transform(images[:1]), 0), dim=1)
    assert torch.allclose(state["classifier"]["sums"].float(), embedding, atol=2**-15)


@pytest.mark.docs
@pytest.mark.parametrize("name", TAKEN)
def test_every_key_of_what_a_method_keeps_is_on_the_page_and_no_other(name):
    found = set()
    for methods, named, _ in rows("| method | key of `memory` | meaning |"):
        if name in re.findall(r"\w+", methods.split(" with ")[0]):
            if " with " in methods and name != "cgp":  # that one was stored with a limit
                continue
            found.update(keys(named))
    (folder,) = DATA.glob(f"0.1.0/{name}")
    assert found == set(Learner.load(folder).method.state_dict())


@pytest.mark.docs
def test_the_parts_of_shares_and_groups_are_on_the_page():
    memory = Learner.load(DATA / "0.1.0" / "cgp").method.state_dict()
    table = {named: text for _, named, text in rows("| method | key of `memory` | meaning |")}
    for part in ("shares", "groups"):
        for of_layer in memory[part].values():
            by_group = {"bases"} if part == "groups" else set()  # in readings that need them
            assert set(of_layer) | by_group == set(keys(table[f"`{part}`"]))


@pytest.mark.docs
def test_what_is_kept_of_an_unfinished_task_is_on_the_page(tmp_path):
    learner, kept = made(GPM()), []

    class Noting(CheckpointManager):
        def save(self, state):
            kept.append(state)

    learner.learn(
        "two", points(2), checkpoint_dir=tmp_path, checkpoints=Noting(tmp_path / "part", steps=1)
    )
    text = PAGE.split("`learning/` has")[1].split("\n\n")[0]
    assert set(kept[0]) <= set(keys(text))


@pytest.mark.docs
def test_without_classgrad_the_state_is_read_by_the_lines_on_the_page(tmp_path, monkeypatch):
    trunk = built(lambda: nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten())).float()
    learner = Learner(trunk.to(memory_format=torch.channels_last), GPM(), training=QUICK)
    rng = torch.Generator().manual_seed(1)
    learner.learn("one", (torch.rand(8, 3, 3, 3, generator=rng), torch.arange(8) % 2))
    assert not learner.net.trunk[0].weight.is_contiguous()  # so strides count
    learner.save(tmp_path / "STATE")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "classgrad" not in code
    monkeypatch.chdir(tmp_path)
    space = {}
    exec(code, space)
    assert same(space["state"], learner._saved_state())


@pytest.mark.docs
@pytest.mark.parametrize("name", TAKEN)
def test_the_state_of_every_method_is_read_so(name):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder, space = DATA / "0.1.0" / name, {}
    exec(code.replace("STATE", str(folder)), space)
    assert same(space["state"], Store(folder / FOLDER).load().state)


def test_of_a_class_with_one_image_cgp_keeps_that_image_unless_refining_is_off(images):
    groups = learnt(CGP(contrast=0), images).method.state_dict()["groups"]
    assert torch.allclose(groups["1"]["prototypes"].double(), seen(images), atol=1e-5)
    plain = CGP(contrast=0, similarity=1)
    groups = learnt(plain, images, prototypes=False).method.state_dict()["groups"]
    assert groups["1"]["prototypes"].numel() == 0
    assert "groups" not in learnt(GPM(), images).method.state_dict()
    with pytest.raises(UserError, match="similarity=1"):
        learnt(CGP(contrast=0), images, prototypes=False)


def test_of_a_task_with_one_image_the_basis_is_that_image(images):
    (basis,) = learnt(GPM(), images[:1]).method.state_dict()["bases"].values()
    assert basis.shape == (12, 1)
    length = (seen(images[:1]).double() @ basis.double()).abs()
    assert torch.allclose(length, torch.ones(1).double(), atol=1e-6)


def test_class_means_are_embeddings_of_single_images_and_can_be_left_out(images):
    learner = learnt(GPM(), images)
    x = learner.transform(images)
    embeddings = functional.normalize(learner.net.embed(x, 0), dim=1)
    assert torch.allclose(learner.prototypes[0], embeddings, atol=1e-6)
    assert learnt(GPM(), images, prototypes=False).state_dict()["prototypes"] == []


def test_saved_alone_nothing_on_disk_has_the_prototypes_of_a_forgotten_class(images, tmp_path):
    learner = learnt(CGP(contrast=0), images)
    learner.save(tmp_path)
    learner.forget_class("one", "1")

    def found():
        from safetensors.torch import load_file

        tables = [t for p in tmp_path.rglob("*.safetensors") for t in load_file(p).values()]
        wide = [table for table in tables if table.shape == (3, 12)]
        assert wide
        return any((table.double() @ seen(images)[1] > 0.9999).any() for table in wide)

    learner.save(tmp_path)
    assert found()
    learner.save(tmp_path, keep=1)
    assert not found()
