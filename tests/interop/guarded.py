"""Two tasks learnt by one model three times: guarded with ε = 1, with ε = 0.99, and unguarded."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.guard.attach import Guard, attach
from classgrad.methods import GPM
from interop.architectures import ARCHITECTURES, Batch, task

OLD, NEW = 6, 16  # samples of the tasks; few old ones leave room in small layers
STEPS = 20  # of the first task
MOST_STEPS = 200  # of the second
RATE = 1e-3
MASSIVE_CHANNEL, MASSIVE = 5, 40.0  # of the inputs of all blocks, where others are about 1
CASES = {name: (name, False) for name in ARCHITECTURES} | {
    f"{name}, pretrained": (name, True) for name in ("ViT", "ResNet", "EfficientNet", "BERT")
}
EPSILONS = {"exact": 1.0, "near": 0.99, "unguarded": None}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let models draw their weights and their dropout from a generator of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, steps: int) -> None:
    """Take ordinary steps with the loss that the model computes itself."""
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()


def train_until_learnt(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> tuple[float, int]:
    """Take steps until all samples are classified correctly; return the share, and the steps."""
    learnt, steps = 0.0, 0
    while learnt < 1 and steps < MOST_STEPS:
        train(model, optimizer, batch, 10)
        learnt, steps = accuracy(model, batch), steps + 10
    return learnt, steps


@torch.no_grad()
def logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return the answers of a model in evaluation."""
    answers: Tensor = model.eval()(**batch).logits
    return answers


def accuracy(model: nn.Module, batch: Batch) -> float:
    """Return the share of samples that are classified correctly."""
    return float((logits(model, batch).argmax(1) == batch["labels"]).double().mean())


class LayerInputs:
    """What Linear layers and convolutions without groups multiply for a batch, and their weights.

    Written from the definition, for the bound ||ΔW C|| <= ||ΔW||₂ √(1 - ε) ||C||.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self.seen: dict[nn.Module, list[Tensor]] = {}
        layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        hooks = [m.register_forward_pre_hook(self._see) for m in layers]
        logits(model, batch)
        for hook in hooks:
            hook.remove()
        self.weights = {layer: layer.weight.detach().clone() for layer in self.seen}

    def _see(self, layer: Any, args: tuple[Tensor, ...]) -> None:
        x = args[0].detach()
        if isinstance(layer, nn.Conv2d):
            if layer.groups > 1 or isinstance(layer.padding, str):
                return
            patches = functional.unfold(
                x, layer.kernel_size, layer.dilation, layer.padding, layer.stride
            )
            x = patches.transpose(1, 2)
        self.seen.setdefault(layer, []).append(x.reshape(-1, x.shape[-1]).double())

    def share_of_bound(self, epsilon: float) -> float:
        """Return the largest share of its bound by which a layer's outputs have moved."""
        shares = []
        for layer, inputs in self.seen.items():
            c = torch.cat(inputs)
            move = (layer.weight.detach() - self.weights[layer]).flatten(1).double()
            bound = torch.linalg.matrix_norm(move, 2) * math.sqrt(1 - epsilon) * c.norm()
            if bound:
                shares.append(float((c @ move.T).norm() / bound))
        return max(shares)


def measure(name: str, pretrained: bool, folder: Path) -> dict[str, float]:
    """Learn two tasks guarded and unguarded; return how far old logits moved, and what was learnt.

    A `pretrained` model has learnt another task before it gets its guard. The guard is saved and
    loaded between the tasks.
    """
    architecture = ARCHITECTURES[name]
    old, new = (task(architecture.reads, number, (OLD, NEW)[number]) for number in (0, 1))
    with seeded(0):
        start = architecture.make()
        if pretrained:
            before_all = task(architecture.reads, 0, NEW, seed=1)
            train(start, torch.optim.AdamW(start.parameters(), RATE), before_all, STEPS)
    found: dict[str, float] = {}
    for label, epsilon in EPSILONS.items():
        model = copy.deepcopy(start)
        with seeded(1):
            optimizer = torch.optim.AdamW(model.parameters(), RATE)
            if epsilon:
                guard = attach(model, GPM(epsilon=epsilon), optimizer, pretrained=pretrained)
            train(model, optimizer, old, STEPS)
            if epsilon:
                guard.end_task([old])
                model, optimizer, guard = reloaded(architecture.make(), model, guard, folder)
            before, inputs = logits(model, old), LayerInputs(model, old)
            learnt, steps = train_until_learnt(model, optimizer, new)
        moved = (logits(model, old) - before).norm() / before.norm()
        found[f"{label} leak"] = float(moved)
        found[f"{label} accuracy"], found[f"{label} steps"] = learnt, steps
        if epsilon == EPSILONS["near"]:
            found["share of the bound"] = inputs.share_of_bound(epsilon)
    return found


def measure_massive_channel() -> dict[str, dict[str, float]]:
    """Let one channel drown the others, as some do in pretrained models; return leaks at ε = 0.99.

    By the number of strongest directions that do not count for ε: how far old logits moved, and the
    protected directions of all layers together.
    """
    architecture = ARCHITECTURES["ViT"]
    old, new = (task(architecture.reads, number, (OLD, NEW)[number]) for number in (0, 1))
    with seeded(0):
        start = architecture.make()
    for name, parameter in start.named_parameters():
        if "layernorm" in name and name.endswith("bias"):
            parameter.data[MASSIVE_CHANNEL] = MASSIVE
    found = {}
    for uncounted in (0, 1):
        model = copy.deepcopy(start)
        optimizer = torch.optim.AdamW(model.parameters(), RATE)
        method = GPM(epsilon=0.99, uncounted=uncounted)
        guard = attach(model, method, optimizer, pretrained=True)
        train(model, optimizer, old, STEPS)
        guard.end_task([old])
        before = logits(model, old)
        learnt, steps = train_until_learnt(model, optimizer, new)
        found[str(uncounted)] = {
            "leak": float((logits(model, old) - before).norm() / before.norm()),
            "rank": sum(layer.rank for layer in guard.layer_ranks()),
            "accuracy": learnt,
            "steps": steps,
        }
    return found


def reloaded(
    fresh: nn.Module, model: nn.Module, guard: Guard, folder: Path
) -> tuple[nn.Module, torch.optim.Optimizer, Guard]:
    """Save the guard, and load it for another model with the same weights."""
    path = folder / "guard.safetensors"
    guard.save(path)
    fresh.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(fresh.parameters(), RATE)
    return fresh, optimizer, attach(fresh, path, optimizer)
