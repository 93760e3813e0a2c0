"""A small transformer and a small CNN, as one would write them in PyTorch, with a head per task."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE, PATCH = 8, 4  # of images and of the transformer's patches, in pixels
WIDTH, HEADS, BLOCKS = 64, 4, 2  # of the transformer


class Block(nn.Module):
    """Attention and two layers, each on normalised inputs and added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to tokens."""
        y = self.norm1(x)
        parts = (layer(y).unflatten(2, (HEADS, -1)) for layer in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        z: Tensor = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return z


class Transformer(nn.Module):
    """Images as patches, positions, blocks, and the mean over all patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH**2, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn((SIZE // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to embeddings."""
        tokens = self.patches(functional.unfold(x, PATCH, stride=PATCH).transpose(1, 2))
        y: Tensor = self.norm(self.blocks(tokens + self.positions)).mean(1)
        return y


def cnn() -> nn.Module:
    """Return two convolutions and a Linear layer, without norms."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIZE // 4) ** 2, WIDTH),
        nn.ReLU(),
    )


TRUNKS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "CNN": cnn}


class Model(nn.Module):
    """A trunk that all tasks share, and a head for each."""

    def __init__(self, trunk: nn.Module, classes: list[int]) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(nn.Linear(WIDTH, count) for count in classes)

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Return the logits of a task's classes."""
        logits: Tensor = self.heads[task](self.trunk(x))
        return logits

    def layers(self) -> dict[str, nn.Linear | nn.Conv2d]:
        """Return the layers of the trunk that have a weight matrix, by name."""
        named = self.trunk.named_modules(prefix="trunk")
        return {name: m for name, m in named if isinstance(m, nn.Linear | nn.Conv2d)}


def build(kind: str, classes: list[int], seed: int) -> Model:
    """Return a model with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(TRUNKS[kind](), classes)
