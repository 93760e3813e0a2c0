"""Runs of one's own parts: a network, a method, training and a stream as objects."""

import pytest
import torch
from torch import nn

from classgrad import CGP, GPM, Training, benchmarks, run
from classgrad.errors import UserError
from classgrad.runs.spec import make_plan
from streams import blobs

QUICK = {"epochs": 2, "batch_size": 16}


class Small(nn.Module):
    """A trunk with BatchNorm and dropout, from (n, 1, 8, 8) to (n, 12)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1)
        )

    def forward(self, x):
        return self.body(x)


def made(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Small()


def exact(record):
    return record.model_dump(exclude={"seconds"})


def test_a_module_is_copied_and_its_run_resumed(tmp_path):
    module = made()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    record = run(blobs(), "gpm", network=module, values=QUICK, out=tmp_path)
    assert record.average_accuracy > 80
    assert record.network.startswith("own:Small-")
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    seen = []
    again = run(blobs(), "gpm", network=made(), values=QUICK, out=tmp_path, observer=seen.append)
    assert (seen, exact(again)) == ([], exact(record))
    other = run(blobs(), "gpm", network=made(1), values=QUICK, out=tmp_path)
    assert other.network != record.network  # other weights are another network


def test_a_run_of_a_module_that_was_cut_short_ends_with_the_same_bits(tmp_path):
    class Cut(BaseException):
        pass

    def observer(at):
        if at.task == 1:
            raise Cut

    whole = run(blobs(), "cgp", network=made, values=QUICK)
    with pytest.raises(Cut):
        run(blobs(), "cgp", network=made, values=QUICK, out=tmp_path, observer=observer)
    assert exact(run(blobs(), "cgp", network=made, values=QUICK, out=tmp_path)) == exact(whole)


def test_what_makes_a_network_draws_by_the_seed():
    plans = [make_plan(blobs(), "gpm", network=Small, seed=seed) for seed in (1, 1, 2)]
    assert plans[0].network == plans[1].network != plans[2].network


def test_options_of_a_network_of_ones_own_are_its_heads():
    plan = make_plan(blobs(), "gpm", network=Small, values={"heads": "shared"})
    assert plan.network_options.heads == "shared"
    with pytest.raises(UserError, match="norm"):
        make_plan(blobs(), "gpm", network=Small, values={"norm": "stored"})
    with pytest.raises(UserError, match="returns a str"):
        make_plan(blobs(), "gpm", network=lambda: "net")


@pytest.mark.parametrize("kind", [CGP, GPM])
@pytest.mark.parametrize("benchmark", ["permuted-digits", "split-cifar100"])
def test_a_method_as_an_object_gets_what_the_recipe_gives_by_name(kind, benchmark):
    assert make_plan(benchmark, kind()).as_dict() == make_plan(benchmark, kind.name).as_dict()
    plan = make_plan(benchmark, kind(epsilon=0.9))
    assert plan.method.energy == 0.9
    assert plan.method.samples == make_plan(benchmark, kind.name).method.samples


def test_the_object_and_the_name_make_the_same_run():
    stream = benchmarks.split_digits(seed=2)
    by_object = run(stream, CGP(eta=0.8), training=Training(epochs=1), seed=2)
    by_name = run("split-digits", "cgp", values={"eta": 0.8, "epochs": 1}, seed=2)
    assert exact(by_object) == exact(by_name)


def test_training_as_an_object_gives_what_it_sets():
    usual = make_plan("permuted-digits", "gpm").training
    plan = make_plan("permuted-digits", "gpm", training=Training(epochs=3))
    assert plan.training == usual.replace(epochs=3)
    explicit = make_plan(
        "permuted-digits", "gpm", training=Training(epochs=3), values={"epochs": 4}
    )
    assert explicit.training.epochs == 4
