"""What projection would cost in large networks, counted from the shapes of their layers.

Nothing here is measured. A layer with weights o x d is used at `positions` positions of an image,
so a batch of B images has R = B * positions rows. Counted are multiplications and additions:

- forward and backward: 6 R d o, three matrix products
- projection by rows: 4 R d r; on the gradient: 4 o d r, with r = d/2, the most in a step
- the bases of one class, with n >= d rows: 2 n d² for C Cᵀ, 10 d² r for the parts of it inside and
  outside the basis, about 9 d³ for eigenvectors
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

IMAGES = 64  # of a step, where layers are compared
BATCH = 1024  # images of a step over all processes of a cluster
PROCESSES = (1, 4, 16, 64, 256)
SAMPLES = 125  # images that represent a class, each with all its positions

# Operations per second of an A100 by its data sheet. Under autocast, forward and backward run in
# bfloat16, projection in the precision of the weights: TensorFloat-32 if that is enabled.
RATES = {"bfloat16": 312e12, "tf32": 156e12, "float32": 19.5e12}


@dataclass(frozen=True)
class Layer:
    """A weight matrix (outputs x dimension) that `count` layers of a network have."""

    name: str
    outputs: int
    dimension: int
    positions: int
    linear: bool
    count: int = 1

    @property
    def rank(self) -> int:
        """The most columns a step uses: for a fuller basis the complement is used."""
        return self.dimension // 2

    def training(self, images: int) -> int:
        """Operations of forward and backward."""
        return 6 * images * self.positions * self.dimension * self.outputs

    def by_rows(self, images: int) -> int:
        """Operations of a projection of the rows."""
        return 4 * images * self.positions * self.dimension * self.rank

    def on_gradient(self) -> int:
        """Operations of a projection of the gradient."""
        return 4 * self.outputs * self.dimension * self.rank

    def chosen(self, images: int) -> int:
        """Operations of the projection that the library chooses."""
        few = self.linear and images * self.positions <= self.outputs
        return self.by_rows(images) if few else self.on_gradient()

    def bases(self) -> int:
        """Operations for the directions of one more class."""
        rows, d, r = SAMPLES * self.positions, self.dimension, self.rank
        return 2 * rows * d**2 + 10 * d**2 * r + 9 * d**3


@dataclass(frozen=True)
class Network:
    """Layers to protect, and the forward operations per image of products without weights.

    `norms` has the channels of every BatchNorm layer.
    """

    name: str
    layers: list[Layer]
    weightless: int = 0
    norms: tuple[int, ...] = ()

    def total(self, count: Callable[[Layer], int]) -> int:
        """Return the sum of a count over all layers."""
        return sum(layer.count * count(layer) for layer in self.layers)

    def training(self, images: int) -> int:
        """Operations of forward and backward of the whole network."""
        return self.total(lambda layer: layer.training(images)) + 3 * images * self.weightless

    def share(self, images: int) -> float:
        """Operations of the projection as a share of forward and backward."""
        return self.total(lambda layer: layer.chosen(images)) / self.training(images)


def vit_b16() -> Network:
    """ViT-B/16 on 224 x 224 pixels, without its head."""
    return vit("ViT-B/16", 768, 12)


def vit_l16() -> Network:
    """ViT-L/16, likewise."""
    return vit("ViT-L/16", 1024, 24)


def vit(name: str, width: int, blocks: int) -> Network:
    """A vision transformer on 196 patches and a class token."""
    patches, tokens = 196, 197
    layers = [
        Layer("patches", width, 3 * 16 * 16, patches, linear=False),
        Layer("qkv", 3 * width, width, tokens, linear=True, count=blocks),
        Layer("proj", width, width, tokens, linear=True, count=blocks),
        Layer("mlp in", 4 * width, width, tokens, linear=True, count=blocks),
        Layer("mlp out", width, 4 * width, tokens, linear=True, count=blocks),
    ]
    # The products of queries with keys, and of attention weights with values.
    return Network(name, layers, weightless=blocks * 2 * 2 * tokens**2 * width)


def resnet50() -> Network:
    """ResNet-50 on 224 x 224 pixels, without its head, strides in the 3 x 3 convolutions."""
    layers = [Layer("conv1", 64, 3 * 7 * 7, 112**2, linear=False)]
    channels, before = 64, 56
    for stage, (width, blocks, side) in enumerate(
        [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], start=1
    ):
        name, wide = f"layer{stage}", 4 * width
        layers += [
            Layer(f"{name} first 1x1", width, channels, before**2, linear=False),
            Layer(f"{name} shortcut", wide, channels, side**2, linear=False),
            Layer(f"{name} other 1x1 in", width, wide, side**2, linear=False, count=blocks - 1),
            Layer(f"{name} 3x3", width, 9 * width, side**2, linear=False, count=blocks),
            Layer(f"{name} 1x1 out", wide, width, side**2, linear=False, count=blocks),
        ]
        channels, before = wide, side
    norms = tuple(layer.outputs for layer in layers for _ in range(layer.count))
    return Network("ResNet-50", layers, norms=norms)


def paper() -> dict[str, Any]:
    """Return all counts, for JSON."""
    networks = {"vit_b16": vit_b16(), "resnet50": resnet50()}
    return {
        "images": IMAGES,
        "batch": BATCH,
        "samples": SAMPLES,
        "rates": RATES,
        "layers": {name: layer_rows(network) for name, network in networks.items()},
        "cluster": [cluster_row(networks, processes) for processes in PROCESSES],
        "memory": [memory_row(network) for network in networks.values()],
    }


def layer_rows(network: Network) -> list[dict[str, Any]]:
    """Count each kind of layer in a step, and all of them; shares are of forward and backward."""
    rows: list[dict[str, Any]] = [
        {
            "layer": layer.name,
            "count": layer.count,
            "outputs": layer.outputs,
            "dimension": layer.dimension,
            "positions": layer.positions,
            "training_flops": layer.training(IMAGES),
            "by_rows_share": layer.by_rows(IMAGES) / layer.training(IMAGES),
            "on_gradient_share": layer.on_gradient() / layer.training(IMAGES),
        }
        for layer in network.layers
    ]
    whole = network.training(IMAGES)
    total = {
        **dict.fromkeys(rows[0]),
        "layer": "whole network",
        "count": network.total(lambda layer: 1),
        "training_flops": whole,
        "by_rows_share": network.total(lambda layer: layer.by_rows(IMAGES)) / whole,
        "on_gradient_share": network.total(lambda layer: layer.on_gradient()) / whole,
    }
    return [*rows, total]


def cluster_row(networks: dict[str, Network], processes: int) -> dict[str, Any]:
    """Return the time of the projection as a share of forward and backward, by precision."""
    images = BATCH // processes
    row: dict[str, Any] = {"ranks": processes, "images": images}
    for name, network in networks.items():
        row[f"{name}_share"] = network.share(images)
        for precision in ("tf32", "float32"):
            slower = RATES["bfloat16"] / RATES[precision]
            row[f"{name}_{precision}_share"] = slower * network.share(images)
    return row


def memory_row(network: Network) -> dict[str, Any]:
    """Return bytes of weights, bases and Grams, and the operations of one class's bases."""
    weights = network.total(lambda layer: layer.outputs * layer.dimension)
    square = network.total(lambda layer: layer.dimension**2)
    half = network.total(lambda layer: layer.dimension * layer.rank)
    return {
        "network": network.name,
        "weight_bytes": 4 * weights,
        "basis_half_bytes": 4 * half,
        "basis_full_bytes": 4 * square,
        "side_bytes": 4 * half,
        "gram_bytes": 8 * square,
        "class_flops": network.total(lambda layer: layer.bases()),
    }
