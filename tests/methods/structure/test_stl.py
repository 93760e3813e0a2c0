"""Single-task learning: every task as on its own, nothing forgotten, T times the capacity."""

import copy

import pytest
import torch
from torch import nn

from classgrad import networks
from classgrad.errors import UserError
from classgrad.methods import STL, Finetune
from classgrad.networks.network import Network, initialise, preserved_rng
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.seeds import generator
from classgrad.training.loop import fit
from streams import blobs

FLAT = blobs()
IMAGES = blobs(tasks=2, classes=2, shape=(3, 20, 20), per_class=6)
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "warmup": 0}
CASES = [
    ("mlp", FLAT, {"batch_norm": True, "norm": "stored", "dropout": 0.2, "affine": "task"}),
    ("lenet5", IMAGES, {}),
    ("resnet18", IMAGES, {"width": 4, "norm": "batch"}),
]


@pytest.mark.parametrize(("network", "stream", "options"), CASES)
def test_every_task_is_learnt_as_by_finetune_on_its_own(network, stream, options):
    values = {**QUICK, "weight_decay": 0.01, **options}
    plan = make_plan(stream, STL(), network=network, values=values)
    running = Run(plan, stream)
    running.execute()
    for task in stream:
        trunk_seed = (1, "trunk", task.id) if task.id else (1, "trunk")
        alone = networks.build(network, stream.input_shape, 1, **plan.network_options.model_dump())
        for parameter in alone.trunk.parameters():
            parameter.data = parameter.data.contiguous()
        initialise(alone.trunk, generator(*trunk_seed), alone.trunk.scheme)
        for parameter in alone.trunk.parameters():
            if parameter.dim() == 4:
                last = parameter.data.contiguous(memory_format=torch.channels_last)
                parameter.data = last
        alone.add_task(task.classes)
        head = alone.heads[0]
        initialise(head, generator(1, "head", task.id))
        # The loop names its rng by the task, so the task keeps its number; so does the head.
        alone.heads.extend([head] * task.id)
        alone.select = lambda task: None  # a network of one task has the norms of one
        fit(alone, Finetune(), [task], plan.training, seed=1)
        column = running.net.trunk.columns[task.id]
        for left, right in zip(column.parameters(), alone.trunk.parameters(), strict=True):
            assert torch.equal(left, right)
        for left, right in zip(column.buffers(), alone.trunk.buffers(), strict=True):
            assert torch.equal(left, right)
        assert torch.equal(running.net.heads[task.id].weight, head.weight)


@pytest.mark.parametrize("heads", ["task", "shared"])
def test_nothing_is_forgotten_and_capacity_is_a_network_per_task(heads):
    record = Run(make_plan(FLAT, STL(), values={**QUICK, "heads": heads}), FLAT).execute()
    assert record.backward_transfer == 0
    assert record.forgetting == 0
    assert record.memory_bytes == 0
    trunk, head = 64 * 256 + 256 * 256, 256 * 3
    assert record.parameters == 3 * (trunk + head)
    base = trunk + (1 if heads == "shared" else 3) * head
    assert record.capacity == pytest.approx(100 * 3 * (trunk + head) / base)


def test_other_methods_have_the_base_network():
    for name, wanted in (("finetune", 100.0), ("gpm", 100.0)):
        record = Run(make_plan(FLAT, name, values=QUICK), FLAT).execute()
        assert record.capacity == wanted
    gates = Run(make_plan(FLAT, "hat", values=QUICK), FLAT).execute()
    base = 64 * 256 + 256 * 256 + 3 * 256 * 3
    assert gates.capacity == pytest.approx(100 * (base + 3 * 512) / base)


def test_zeros_do_not_count():
    running = Run(make_plan(FLAT, "finetune", values=QUICK), FLAT)
    before = running.method.stored_parameters(running.net)
    running.net.trunk.fc1.weight.data[:10] = 0
    assert running.method.stored_parameters(running.net) == before - 10 * 64


def test_layers_of_other_kinds_start_anew_too():
    with preserved_rng():
        torch.manual_seed(1)
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5), nn.PReLU())
        start = copy.deepcopy(trunk)
        net = Network(trunk, 5)
        net.add_task(2)
    stacked = STL().wrap(net, FLAT, 1)
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter.add_(1.0)
    stacked.add_task(2)
    first, second = stacked.trunk.columns
    assert torch.equal(second[2].weight, start[2].weight)
    assert torch.equal(second[3].weight, start[3].weight)
    assert not torch.equal(second[1].weight, first[1].weight)


def test_a_layer_that_cannot_start_anew_is_refused():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(5))

    with preserved_rng():
        net = Network(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), Own()), 5)
        net.add_task(2)
    stacked = STL().wrap(net, FLAT, 1)
    with pytest.raises(UserError, match=r"layer '2' \(Own\) cannot be reset") as caught:
        stacked.add_task(2)
    assert "\n" not in str(caught.value)
