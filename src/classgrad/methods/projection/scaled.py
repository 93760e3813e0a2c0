"""Layers whose weight a task can scale inside given subspaces of its inputs (TRGP, ICLR 2022).

With W (o x d) the weight, and B_j (d x k) and Q_j (k x k) for each region j of a task, a layer uses

    W + Σ_j (W B_j Q_j B_jᵀ - W B_j B_jᵀ) = W + W Σ_j B_j (Q_j - I) B_jᵀ

All B_j are columns of one basis S of the layer, so the sum is S D Sᵀ with D the Q_j - I in the
rows and columns of B_j. The parameters are the Q_j - I, initially zeros, so that weight decay pulls
Q_j to the identity. A Linear layer multiplies its input by I + S D Sᵀ instead of its weight: the
same result, and cheaper, as a batch has fewer rows than the weight.

Layers are converted by changing their class, so that names and weights stay.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.layers import ConvolutionKind, LayerKind, register_layer
from classgrad.errors import UserError
from classgrad.networks.layers import PerTask


class Scaled(PerTask):
    """The base of both layer types: S, and for each task the columns and Q - I of its regions."""

    weight: Tensor
    basis: Tensor  # S (d x r), which only grows; in the method's state, not in the layer's
    regions: dict[int, list[Tensor]]  # task -> columns of S, for each region

    def add_task(self) -> None:
        """Do nothing: the regions of a task are added when it begins."""

    @property
    def task_dependent(self) -> bool:
        """Whether some task has regions."""
        return any(self.regions.values())

    def add_regions(self, task: int, columns: Sequence[Tensor]) -> None:
        """Let a task scale the weight inside these columns of S; existing scales stay."""
        self.regions[task] = list(columns)
        for number, region in enumerate(columns):
            name = f"scale_{task}_{number}"
            if not hasattr(self, name):
                start = self.weight.new_zeros(len(region), len(region))
                self.register_parameter(name, nn.Parameter(start))

    def scales(self, task: int) -> list[nn.Parameter]:
        """Return Q - I of each region of a task."""
        count = len(self.regions.get(task, []))
        return [self.get_parameter(f"scale_{task}_{number}") for number in range(count)]

    def inner(self) -> Tensor | None:
        """Return D (r x r) of the selected task; None if it has no region."""
        scales = self.scales(self.task)
        if not scales:
            return None
        rank = self.basis.shape[1]
        d = self.weight.new_zeros(rank, rank)
        for region, scale in zip(self.regions[self.task], scales, strict=True):
            d = d.index_put((region[:, None], region[None, :]), scale, accumulate=True)
        return d


class ScaledLinear(Scaled, nn.Linear):
    """A Linear layer with scales for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (W + W S D Sᵀ) x + b for each row x."""
        return functional.linear(self.scaled(input), self.weight, self.bias)

    def scaled(self, input: Tensor) -> Tensor:
        """Return (I + S D Sᵀ) x for each row x, the input of W for the selected task."""
        d = self.inner()
        return input if d is None else input + (input @ self.basis) @ d.T @ self.basis.T


class ScaledConv2d(Scaled, nn.Conv2d):
    """A convolution with scales for each task, on its patches."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution with W + W S D Sᵀ."""
        out: Tensor = self._conv_forward(input, self.scaled_weight(), self.bias)
        return out

    def scaled_weight(self) -> Tensor:
        """Return W + W S D Sᵀ for the selected task."""
        d = self.inner()
        if d is None:
            return self.weight
        matrix = self.weight.flatten(1)
        return self.weight + ((matrix @ self.basis) @ d @ self.basis.T).view_as(self.weight)


class ScaledLinearKind(LayerKind[ScaledLinear]):
    """A Linear layer that scales its input before the weight."""

    linear = True

    def linear_input(self, layer: ScaledLinear, x: Tensor) -> Tensor:
        """Return (I + S D Sᵀ) x for each row x."""
        return layer.scaled(x)


# Scales act only inside subspaces that no later update changes: to gradient projection, inputs and
# matrices are those of plain layers.
register_layer(ScaledLinear, ScaledLinearKind())
register_layer(ScaledConv2d, ConvolutionKind())


def make_scaled(model: nn.Module) -> None:
    """Convert the trainable Linear and Conv2d layers of a model into scaled ones; refuse others.

    Layers that are scaled already stay as they are.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, Scaled) or not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
            continue
        weight = layer.weight
        if not weight.requires_grad:
            continue
        if type(layer) is nn.Linear:
            layer.__class__ = ScaledLinear
        elif type(layer) is nn.Conv2d and layer.groups == 1:
            layer.__class__ = ScaledConv2d
        else:
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) cannot be scaled for each task: trgp "
                "takes nn.Linear, and nn.Conv2d without groups"
            )
        layer.regions = {}
        layer.register_buffer("basis", weight.new_zeros(weight[0].numel(), 0), persistent=False)
