"""PEFT's methods in the measurement of guards: what they train is merged into the model."""

import copy

import pytest
import torch

from benchmarks.guards import learning
from benchmarks.guards.contenders import OSF, LoRA
from benchmarks.guards.cost import second_task
from benchmarks.guards.models import TRUNKS
from benchmarks.guards.tasks import split_tasks
from interop.guarded import seeded

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kind", TRUNKS)
@pytest.mark.parametrize("contender", [OSF(effective_rank=0.5), LoRA(r=2)])
def test_what_was_learnt_is_merged(
    kind: str, contender: OSF | LoRA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "FIRST_STEPS", 20)
    tasks = split_tasks(2, 1)
    start = learning.learn_first(kind, tasks, 1)
    with seeded(0):
        trainer = second_task(contender, copy.deepcopy(start), tasks, 3e-3)
    for _ in range(5):
        trainer.step()
    x = tasks[1].test.x
    with torch.no_grad():
        learnt = trainer.net(x, 1)
        model = contender.merge(trainer.net)
        torch.testing.assert_close(model(x, 1), learnt, rtol=1e-3, atol=1e-4)
    assert model.layers().keys() == start.layers().keys()
    moved = {
        name
        for name, layer in model.layers().items()
        if not torch.equal(layer.weight, start.layers()[name].weight)
    }
    frozen = {"trunk.0", "trunk.3"} if kind == "CNN" and isinstance(contender, OSF) else set()
    assert moved == start.layers().keys() - frozen
    assert torch.equal(model.heads[0].weight, start.heads[0].weight)
    assert not torch.equal(model.heads[1].weight, start.heads[1].weight)
