"""Two tasks learnt by one model three times: guarded with ε = 1, with ε = 0.99, and unguarded."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.guard.attach import Guard, attach
from classgrad.methods import GPM
from interop.architectures import ARCHITECTURES, Architecture, Batch
from interop.weights import PRETRAINED, MiniLM, MobileNetV2

OLD, NEW = 6, 16  # samples of the tasks; few old ones leave room in small layers
STEPS = 20  # of the first task
MOST_STEPS = 200  # of the second
MASSIVE_CHANNEL, MASSIVE = 5, 40.0  # of the inputs of all blocks, where others are about 1
Case = Architecture | MiniLM | MobileNetV2
CASES: dict[str, tuple[Case, bool]] = {
    **{name: (architecture, False) for name, architecture in ARCHITECTURES.items()},
    **{
        f"{name}, pretrained": (ARCHITECTURES[name], True)
        for name in ("ViT", "ResNet", "EfficientNet", "BERT")
    },
    **{name: (case, True) for name, case in PRETRAINED.items()},
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

    def strongest_channel(self) -> float:
        """Return the largest share of a layer's energy that is in a single channel."""
        energies = [torch.cat(inputs).square().sum(0) for inputs in self.seen.values()]
        return max(float(energy.max() / energy.sum()) for energy in energies if energy.any())


def beginning(case: Case, pretrained: bool) -> nn.Module:
    """Return a model as it is before its first task, whether its weights are random or not."""
    with seeded(0):
        start = case.make()
        if pretrained and isinstance(case, Architecture):
            before_all = case.task(0, NEW, seed=1)
            train(start, torch.optim.AdamW(start.parameters(), case.rate), before_all, STEPS)
    return start


def measure(case: Case, pretrained: bool, folder: Path) -> dict[str, float]:
    """Learn two tasks guarded and unguarded; return how far old logits moved, and what was learnt.

    A `pretrained` model comes with its weights, or has learnt another task before it gets its
    guard. The guard is saved and loaded between the tasks.
    """
    old, new = case.task(0, OLD), case.task(1, NEW)
    start = beginning(case, pretrained)
    found: dict[str, float] = {}
    for label, epsilon in EPSILONS.items():
        model = copy.deepcopy(start)
        with seeded(1):
            optimizer = torch.optim.AdamW(model.parameters(), case.rate)
            if epsilon:
                guard = attach(model, GPM(epsilon=epsilon), optimizer, pretrained=pretrained)
            train(model, optimizer, old, STEPS)
            if epsilon:
                guard.end_task([old])
                model, optimizer, guard = reloaded(case, model, guard, folder)
            before, inputs = logits(model, old), LayerInputs(model, old)
            learnt, steps = train_until_learnt(model, optimizer, new)
        moved = (logits(model, old) - before).norm() / before.norm()
        found[f"{label} leak"] = float(moved)
        found[f"{label} accuracy"], found[f"{label} steps"] = learnt, steps
        if epsilon == EPSILONS["near"]:
            found["share of the bound"] = inputs.share_of_bound(epsilon)
    return found


def with_massive_channel() -> nn.Module:
    """Return a ViT in which one channel drowns the others, as some do in pretrained models."""
    start = beginning(ARCHITECTURES["ViT"], pretrained=False)
    for name, parameter in start.named_parameters():
        if "layernorm" in name and name.endswith("bias"):
            parameter.data[MASSIVE_CHANNEL] = MASSIVE
    return start


def measure_uncounted(case: Case, start: nn.Module) -> dict[str, dict[str, float]]:
    """Return leaks at ε = 0.99 by the number of strongest directions that do not count for it.

    Beside how far old logits moved: the protected directions of all layers together and, at the
    end of the first task, the largest share of its energy that a layer has in a single channel.
    """
    old, new = case.task(0, OLD), case.task(1, NEW)
    found = {}
    for uncounted in (0, 1):
        model = copy.deepcopy(start)
        optimizer = torch.optim.AdamW(model.parameters(), case.rate)
        method = GPM(epsilon=0.99, uncounted=uncounted)
        guard = attach(model, method, optimizer, pretrained=True)
        train(model, optimizer, old, STEPS)
        guard.end_task([old])
        before, strongest = logits(model, old), LayerInputs(model, old).strongest_channel()
        learnt, steps = train_until_learnt(model, optimizer, new)
        found[str(uncounted)] = {
            "strongest channel": strongest,
            "leak": float((logits(model, old) - before).norm() / before.norm()),
            "rank": sum(layer.rank for layer in guard.layer_ranks()),
            "accuracy": learnt,
            "steps": steps,
        }
    return found


UNCOUNTED: dict[str, tuple[Case, Callable[[], nn.Module]]] = {
    "ViT with a massive channel": (ARCHITECTURES["ViT"], with_massive_channel),
    **{name: (case, partial(beginning, case, True)) for name, case in PRETRAINED.items()},
}


def reloaded(
    case: Case, model: nn.Module, guard: Guard, folder: Path
) -> tuple[nn.Module, torch.optim.Optimizer, Guard]:
    """Save the guard, and load it for another model with the same weights."""
    path = folder / "guard.safetensors"
    guard.save(path)
    fresh = case.make()
    fresh.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(fresh.parameters(), case.rate)
    return fresh, optimizer, attach(fresh, path, optimizer)
