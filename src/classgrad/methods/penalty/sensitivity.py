"""How much each weight matters to a task: per-sample gradients, summed without storing them.

For one number l_i per sample, every parameter θ gets Σ_i m(∂l_i/∂θ), with the measure m either the
square (Fisher information) or the absolute value (MAS). The gradient of a weight matrix for sample
i is g_iᵀ x_i: x_i holds the rows the matrix multiplies and g_i the gradients of the outputs, one
row per position. With one position m(g_iᵀ x_i) = m(g_i)ᵀ m(x_i), so the sum over all samples is one
matrix product, m(g)ᵀ m(x); with several, as in a convolution, the products of some samples at a
time are formed, measured and summed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from classgrad.core.layers import Site, sites
from classgrad.errors import UserError
from classgrad.methods.base import World
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import BATCH
from classgrad.tasks import Task, batches

Measure = Callable[[Tensor], Tensor]  # torch.square or torch.abs: m(ab) = m(a) m(b)
Scalar = Callable[[Tensor, Tensor], Tensor]  # logits (n x c), labels (n) -> l (n)
Calls = list[tuple[Tensor, Tensor]]  # input and gradient of the output, once per use of a layer

# Numbers in memory at a time for the products of convolutions: 16 MB in single precision.
CHUNK = 2**22

# Layers whose outputs are not one product of each row and the weight.
NOT_BY_SAMPLE = (
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def sensitivity(
    net: Network,
    task: Task,
    parameters: Mapping[str, Tensor],
    scalar: Scalar,
    measure: Measure,
    samples: int,
    generator: torch.Generator,
    *,
    processes: World | None = None,
) -> dict[str, Tensor]:
    """Return the mean of m(∂l_i/∂θ) over up to `samples` random training samples of a task.

    `parameters` of `net.protected()` are given by name, and so is the result. Dropout is off, and
    batch statistics are constants, so that every sample has its own gradient. The `processes`, if
    given, take turns at batches.
    """
    model, dtype = net.protected(), next(net.parameters()).dtype
    if not any(p.requires_grad for p in model.parameters()):  # nothing to differentiate by
        return {}
    chosen = torch.randperm(len(task.train), generator=generator)[:samples]
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    with net.evaluating(), net.detached_batch_stats():
        parts = batches(len(chosen), BATCH)
        for part in processes.take_turns(parts) if processes else parts:
            index = chosen[part]
            x = task.transform(task.train.unit_images(index, dtype))
            y = task.train.labels[index]
            run = partial(_scalars, net, task, scalar, x, y)
            sums = per_sample_sums(model, run, measure)
            for name in total.keys() & sums.keys():
                total[name] += sums[name]
    if processes:
        total = {name: processes.sum(value) for name, value in total.items()}
    return {name: value / len(chosen) for name, value in total.items()}


def _scalars(net: Network, task: Task, scalar: Scalar, x: Tensor, y: Tensor) -> Tensor:
    return scalar(net(x, task.id), y)


def per_sample_sums(
    model: nn.Module, run: Callable[[], Tensor], measure: Measure
) -> dict[str, Tensor]:
    """Return Σ_i m(∂l_i/∂θ) for the l (n) that `run` computes, by name of the parameters it used.

    In the model, no sample may affect the output of another. A layer may be called several times.
    """
    matrices: dict[nn.Module, list[Site]] = {}
    for site in sites(model).values():
        if not isinstance(site.layer, NOT_BY_SAMPLE):  # which `_names` refuses
            matrices.setdefault(site.layer, []).append(site)
    names = _names(model, matrices)
    with torch.enable_grad(), _watched(names) as seen:
        scalars = run()
    edges = [edge for _, _, edge in seen]
    gradients = torch.autograd.grad(scalars.sum(), edges, allow_unused=True)
    used: dict[nn.Module, Calls] = {}
    for (layer, x, _), g in zip(seen, gradients, strict=True):
        if len(x) != len(scalars):
            raise UserError(
                f"layer '{names[layer]}' saw an input of shape {tuple(x.shape)} for a batch of "
                f"{len(scalars)}: its first dimension must be the batch"
            )
        if g is not None:
            dtype = next(layer.parameters()).dtype  # under autocast inputs have another one
            used.setdefault(layer, []).append((x.to(dtype), g.to(dtype)))
    sums: dict[str, Tensor] = {}
    for layer, calls in used.items():
        if isinstance(layer, TaskBatchNorm):
            layer_sums = _norm_sums(layer, calls, measure)
        else:
            layer_sums = _weight_sums(matrices[layer], calls, measure)
        prefix = f"{names[layer]}." if names[layer] else ""
        sums.update({prefix + name: value for name, value in layer_sums.items()})
    return sums


def _names(model: nn.Module, known: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """Return the names of layers with trainable parameters; refuse unsupported types of layers."""
    names = {}
    for name, layer in model.named_modules():
        if not any(p.requires_grad for p in layer.parameters(recurse=False)):
            continue
        if layer not in known and not isinstance(layer, TaskBatchNorm):
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) has parameters whose gradients per "
                "sample cannot be computed: use Linear, Conv and TaskBatchNorm with trainable "
                "weights, or freeze it with requires_grad_(False)"
            )
        names[layer] = name
    return names


@contextmanager
def _watched(
    layers: Iterable[nn.Module],
) -> Iterator[list[tuple[nn.Module, Tensor, GradientEdge]]]:
    """Record every call of these layers in the block: its input, and its output's gradient edge.

    Inputs are copied, and the edge is taken right away, so that later in-place operations cannot
    change them. The hooks are removed when the block ends, also by an exception.
    """
    seen: list[tuple[nn.Module, Tensor, GradientEdge]] = []

    def record(
        layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor
    ) -> None:
        (x,) = (*args, *kwargs.values())
        seen.append((layer, x.detach().clone(), get_gradient_edge(output)))

    handles = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _weight_sums(matrices: list[Site], calls: Calls, measure: Measure) -> dict[str, Tensor]:
    """Return the sums for the weight of a Linear layer or a convolution, and for its bias."""
    layer = matrices[0].layer
    weight = torch.cat([_matrix_sum(site, calls, measure) for site in matrices])
    sums = {"weight": weight.view(matrices[0].weight.shape)}
    if layer.bias is not None:
        biases = [_positions(layer, g).sum(1) for _, g in calls]
        sums["bias"] = measure(_added(biases)).sum(0)
    return sums


def _matrix_sum(site: Site, calls: Calls, measure: Measure) -> Tensor:
    """Return Σ_i m(g_iᵀ x_i) (o x d)."""
    gradients = [_positions(site.layer, g)[..., site.start : site.stop] for _, g in calls]
    g = _joined(gradients)  # n x positions x o
    count, positions, height = g.shape
    if positions == 1:
        return measure(g[:, 0]).T @ measure(site.rows(calls[0][0]))
    total = g.new_zeros(height, site.dimension)
    size = max(1, CHUNK // (site.dimension * max(height, positions)))
    for start in range(0, count, size):
        part = slice(start, start + size)
        rows = [site.rows(x[part]).view(len(g[part]), -1, site.dimension) for x, _ in calls]
        total += measure(g[part].transpose(1, 2) @ _joined(rows)).sum(0)
    return total


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the positions of all calls of a layer; most layers are called once."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _norm_sums(layer: TaskBatchNorm, calls: Calls, measure: Measure) -> dict[str, Tensor]:
    """Return the sums for scale and shift; their gradients are g x̂ and g, summed over positions.

    x̂ is the output of the layer for x with scale 1 and shift 0.
    """
    owner = layer.task if layer.affine == "task" else 0
    ones = torch.ones_like(layer.get_parameter(f"scale_{owner}").detach())
    unit = {f"scale_{owner}": ones, f"shift_{owner}": torch.zeros_like(ones)}
    scales, shifts = [], []
    for x, g in calls:
        normalised = functional_call(layer, unit, (x,))
        scales.append((g * normalised).reshape(*g.shape[:2], -1).sum(2))
        shifts.append(g.reshape(*g.shape[:2], -1).sum(2))
    return {
        f"scale_{owner}": measure(_added(scales)).sum(0),
        f"shift_{owner}": measure(_added(shifts)).sum(0),
    }


def _positions(layer: nn.Module, g: Tensor) -> Tensor:
    """View gradients of outputs as (n x positions x o), in the order of `Site.rows`."""
    if isinstance(layer, nn.Linear):
        return g.reshape(len(g), -1, g.shape[-1])
    return g.flatten(2).transpose(1, 2)


def _added(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)
