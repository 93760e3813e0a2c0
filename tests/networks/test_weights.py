"""First weights of a network from a file of the user's own."""

import shutil

import pytest
import torch
from safetensors.torch import save_file

from classgrad import GPM, Learner, networks, run
from classgrad.checkpoints import CheckpointManager
from classgrad.cli.options import parse_settings
from classgrad.errors import UserError
from classgrad.runs.spec import Plan, make_plan
from classgrad.training.config import Training
from streams import blobs

SHAPE = (1, 8, 8)
QUICK = Training(epochs=1, batch_size=10)


@pytest.fixture
def file(tmp_path):
    """Weights of an MLP of another seed."""
    save_file(
        networks.build("mlp", SHAPE, 7, width=4).trunk.state_dict(), tmp_path / "a.safetensors"
    )
    return tmp_path / "a.safetensors"


def changed(file, **tensors):
    """Return a copy with tensors replaced, or left out if they are None."""
    known = {**networks.build("mlp", SHAPE, 7, width=4).trunk.state_dict(), **tensors}
    other = file.with_name("b.safetensors")
    save_file({name: value for name, value in known.items() if value is not None}, other)
    return other


def test_the_weights_are_those_of_the_file(file):
    net = networks.build("mlp", SHAPE, 1, width=4, weights=file)
    other = networks.build("mlp", SHAPE, 7, width=4)
    drawn = networks.build("mlp", SHAPE, 1, width=4)
    for name, value in net.trunk.state_dict().items():
        assert torch.equal(value, other.trunk.state_dict()[name])
        assert not torch.equal(value, drawn.trunk.state_dict()[name])


def test_the_first_mismatch_is_named(file):
    def refused(path, **options):
        with pytest.raises(UserError) as caught:
            networks.build("mlp", SHAPE, **{"width": 4, "weights": path, **options})
        assert "\n" not in str(caught.value)
        return str(caught.value)

    first = next(iter(networks.build("mlp", SHAPE, width=4).trunk.state_dict()))
    assert f"'{first}' in '{file}' is 4 x 64, but MLP with these options needs 5 x 64" in refused(
        file, width=5
    )
    assert f"has no '{first}', which MLP needs" in refused(changed(file, **{first: None}))
    assert "has 'extra', which MLP does not have" in refused(changed(file, extra=torch.ones(2)))
    assert "there is no file" in refused(file.with_name("none"))
    assert "weights are random, or a safetensors file" in refused("imagenet")
    assert "cannot be read" in refused(file.parent)
    file.write_bytes(b"no tensors")
    assert "is not a safetensors file, or it is damaged" in refused(file)
    assert "weights must be the name of a file" in refused(3)


def test_runs_are_known_by_the_content_of_the_file(file, tmp_path):
    def plan(path):
        return make_plan("split-digits", network="mlp", values={"width": 4, "weights": str(path)})

    moved = tmp_path / "elsewhere" / "c.safetensors"
    moved.parent.mkdir()
    shutil.copy(file, moved)
    other = changed(file, **{"fc1.weight": torch.zeros(4, 64)})
    drawn = make_plan("split-digits", network="mlp", values={"width": 4})
    assert plan(file).identity() == plan(moved).identity()
    names = [p.folder_name() for p in (plan(file), plan(moved), plan(other), drawn)]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert str(file) not in str(plan(file).as_dict())
    assert Plan.from_dict(plan(file).as_dict()).identity() == plan(file).identity()


def test_runs_start_and_resume_from_the_file(file, tmp_path):
    class CutError(Exception):
        pass

    def cut(at):
        if at.task == 1:
            raise CutError

    stream = blobs(tasks=2)
    size = stream.input_shape
    save_file(networks.build("mlp", size, 7, width=4).trunk.state_dict(), file)
    values = {"width": 4, "epochs": 1, "weights": str(file)}
    settings = {"network": "mlp", "values": values}
    whole = run(stream, "gpm", **settings)
    with pytest.raises(CutError):
        run(stream, "gpm", **settings, out=tmp_path, observer=cut)
    resumed = run(stream, "gpm", **settings, out=tmp_path)
    assert resumed.accuracy_matrix == whole.accuracy_matrix
    assert resumed.network_options["weights"].startswith("sha256:")


def test_a_digest_alone_starts_nothing(file):
    digest = make_plan("split-digits", network="mlp", values={"width": 4, "weights": str(file)})
    with pytest.raises(UserError, match="known by a digest only: give their file"):
        networks.build("mlp", SHAPE, width=4, weights=digest.network_options.weights)


def test_learners_start_from_the_file_and_keep_its_digest(file, tmp_path):
    def learner(path):
        options = {"width": 4, "weights": path}
        return Learner(method=GPM(), network="mlp", network_options=options, training=QUICK)

    x = torch.rand(20, *SHAPE, generator=torch.Generator().manual_seed(1))
    data = x, torch.arange(20) % 2
    first = learner(file)
    first.learn("one", data)
    drawn = Learner(method=GPM(), network="mlp", network_options={"width": 4}, training=QUICK)
    drawn.learn("one", data)
    assert not torch.equal(first.net.trunk.fc1.weight, drawn.net.trunk.fc1.weight)
    first.save(tmp_path / "learner")
    file.unlink()  # the state has the weights
    again = Learner.load(tmp_path / "learner")
    assert again.predict(x) == first.predict(x)
    assert again.network_options["weights"].startswith("sha256:")
    again.learn("two", data)


def test_a_task_cut_short_is_not_resumed_with_other_weights(file, tmp_path):
    class CutError(Exception):
        pass

    def cut(at):
        if at.step == 2:
            raise CutError

    def learn(path, observer=None):
        options = {"width": 4, "weights": path}
        learner = Learner(method=GPM(), network="mlp", network_options=options, training=QUICK)
        checkpoints = CheckpointManager(tmp_path / "state" / "learning", steps=1)
        learner.learn(
            "one",
            data,
            checkpoint_dir=tmp_path / "state",
            checkpoints=checkpoints,
            observer=observer,
        )
        return learner

    x = torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(1))
    data = x, torch.arange(40) % 2
    with pytest.raises(CutError):
        learn(file, cut)
    with pytest.raises(UserError, match="cut short with another network_options"):
        learn(changed(file, **{"fc1.weight": torch.zeros(4, 64)}))
    resumed = learn(file)
    shutil.rmtree(tmp_path / "state")
    whole = learn(file)
    assert torch.equal(resumed.net.trunk.fc1.weight, whole.net.trunk.fc1.weight)


def test_the_file_is_given_once_on_the_command_line(file):
    assert parse_settings([], file) == {"weights": str(file)}
    with pytest.raises(UserError, match="--weights and --set weights"):
        parse_settings(["weights=random"], file)
