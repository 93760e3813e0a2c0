"""How much each weight matters to a task: per-sample gradients, summed without storing them.

For one number l_i per sample, every parameter θ gets Σ_i m(∂l_i/∂θ), with the measure m either the
square (Fisher information) or the absolute value (MAS). The gradient of a weight matrix for sample
i is g_iᵀ x_i: x_i holds the rows the matrix multiplies and g_i the gradients of the outputs, one
row per position. With one position m(g_iᵀ x_i) = m(g_i)ᵀ m(x_i), so the sum over all samples is one
matrix product, m(g)ᵀ m(x); with several, as in a convolution, the products of some samples at a
time are formed, measured and summed: few enough to stay in the processor's cache.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from classgrad.core.layers import Convolution, ConvolutionKind, Site, sites
from classgrad.errors import UserError
from classgrad.methods.base import World
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import BATCH
from classgrad.tasks import Task, batches

Measure = Callable[..., Tensor]  # torch.square or torch.abs: m(ab) = m(a) m(b)
Scalar = Callable[[Tensor, Tensor], Tensor]  # logits (n x c), labels (n) -> l (n)
Calls = list[tuple[Tensor, Tensor]]  # input and gradient of the output, once per use of a layer

# Numbers in memory at a time for the products of convolutions: 2 MB in single precision, about what
# the cache of a core holds.
CHUNK = 2**19

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
    totals: dict[str, Tensor] = {}
    with net.evaluating(), net.detached_batch_stats():
        parts = batches(len(chosen), BATCH)
        for part in processes.take_turns(parts) if processes else parts:
            index = chosen[part]
            x = task.transform(task.train.unit_images(index, dtype))
            y = task.train.labels[index]
            run = partial(_scalars, net, task, scalar, x, y)
            per_sample_sums(model, run, measure, totals)
    means = {}
    for name, parameter in parameters.items():
        total = totals.pop(name) if name in totals else torch.zeros_like(parameter)
        means[name] = (processes.sum(total) if processes else total) / len(chosen)
    return means


def _scalars(net: Network, task: Task, scalar: Scalar, x: Tensor, y: Tensor) -> Tensor:
    return scalar(net(x, task.id), y)


def per_sample_sums(
    model: nn.Module,
    run: Callable[[], Tensor],
    measure: Measure,
    totals: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return Σ_i m(∂l_i/∂θ) for the l (n) that `run` computes, by name of the parameters it used.

    With `totals`, add the sums to these and return them. In the model, no sample may affect the
    output of another. A layer may be called several times.
    """
    totals = {} if totals is None else totals
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
    for layer, calls in used.items():
        prefix = f"{names[layer]}." if names[layer] else ""
        if isinstance(layer, TaskBatchNorm):
            sums = _norm_sums(layer, calls, measure)
        else:
            name = f"{prefix}weight"
            if name not in totals:
                totals[name] = torch.zeros_like(matrices[layer][0].weight)
            _add_weight_sums(totals[name], matrices[layer], calls, measure)
            sums = {} if layer.bias is None else {"bias": _bias_sum(layer, calls, measure)}
        for name, value in sums.items():
            totals[prefix + name] = totals.get(prefix + name, 0) + value
    return totals


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
    change them. The large inputs of BatchNorm are not copied where the backward pass needs them: it
    fails if they have been changed. The hooks are removed when the block ends, also by an
    exception.
    """
    seen: list[tuple[nn.Module, Tensor, GradientEdge]] = []

    def record(
        layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor
    ) -> None:
        (x,) = (*args, *kwargs.values())
        needed = isinstance(layer, TaskBatchNorm) and x.requires_grad
        kept = x.detach() if needed else x.detach().clone()
        seen.append((layer, kept, get_gradient_edge(output)))

    handles = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _add_weight_sums(total: Tensor, matrices: list[Site], calls: Calls, measure: Measure) -> None:
    """Add the sums for the weight of a Linear layer or a convolution to the total."""
    layer, kind = matrices[0].layer, matrices[0].kind
    g = _joined([_by_position(layer, g) for _, g in calls], dim=2)
    if isinstance(layer, Convolution) and isinstance(kind, ConvolutionKind):
        groups, dimension = len(matrices), matrices[0].dimension
        sums = total.new_zeros(groups, len(total) // groups, dimension)
        rows = [_patches(kind, layer, x) for x, _ in calls]
        _add_products(sums, g.unflatten(1, (groups, -1)), rows, measure)
        total += sums.view(len(total), *layer.kernel_size, -1).movedim(-1, 1)
        return
    for site in matrices:
        part = total[site.start : site.stop].view(1, -1, site.dimension)
        rows = [site.rows(x).view(len(x), 1, -1, site.dimension) for x, _ in calls]
        _add_products(part, g[:, None, site.start : site.stop], rows, measure)


def _patches(kind: ConvolutionKind, layer: Convolution, x: Tensor) -> Tensor:
    """View an input as the rows of each group, (n x groups x *positions x *kernel x channels).

    Channels are last in memory, as they are in our networks, and in the rows: numbers that are
    copied together then lie together.
    """
    x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    patches: Tensor = kind.patches(layer, x).unflatten(1, (layer.groups, -1))
    return patches.movedim(2, -1)


def _add_products(total: Tensor, g: Tensor, rows: list[Tensor], measure: Measure) -> None:
    """Add Σ_i m(g_i x_i) to a total (groups x o x d), for g (n x groups x o x positions).

    The rows x of each call can be reshaped to (n x groups x positions x d). Overlapping patches are
    then copied, so this is done for some samples at a time.
    """
    count, groups, height, positions = g.shape
    dimension = total.shape[2]
    if positions == 1:
        x = rows[0].reshape(count, groups, dimension)
        total.baddbmm_(measure(g[..., 0]).permute(1, 2, 0), measure(x).transpose(0, 1))
        return
    size = max(1, CHUNK // (groups * dimension * max(height, positions)))
    for start in range(0, count, size):
        part = slice(start, start + size)
        chosen = [r[part].reshape(len(r[part]), groups, -1, dimension) for r in rows]
        products = g[part] @ _joined(chosen, dim=2)
        total += measure(products, out=products).sum(0)


def _bias_sum(layer: nn.Module, calls: Calls, measure: Measure) -> Tensor:
    """Return the sums for the bias of a Linear layer or a convolution."""
    return measure(_added([_by_position(layer, g).sum(2) for _, g in calls])).sum(0)


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
        scales.append(normalised.mul_(g).reshape(*g.shape[:2], -1).sum(2))
        shifts.append(g.reshape(*g.shape[:2], -1).sum(2))
    return {
        f"scale_{owner}": measure(_added(scales)).sum(0),
        f"shift_{owner}": measure(_added(shifts)).sum(0),
    }


def _by_position(layer: nn.Module, g: Tensor) -> Tensor:
    """View gradients of outputs as (n x o x positions), with positions in the order of the rows."""
    if isinstance(layer, nn.Linear):
        return g.reshape(len(g), -1, g.shape[-1]).transpose(1, 2)
    return g.flatten(2)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """Return the positions of all calls of a layer; most layers are called once."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _added(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)
