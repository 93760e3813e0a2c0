"""How much each weight matters to a task: gradients per sample, summed without keeping them.

For one number l_i per sample, every parameter θ gets Σ_i m(∂l_i/∂θ), with the measure m either the
square (Fisher information) or the absolute value (MAS). The gradient of a weight matrix for sample
i is g_iᵀ x_i: x_i holds the rows the matrix multiplies and g_i the gradients of what comes out, one
row per position. With one position both measures pass through the product, and the sum over all
samples is one matrix product, m(g)ᵀ m(x); with several, as in a convolution, the products of some
samples at a time are formed, measured and added up.
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

# Numbers held at a time for the products of convolutions: 16 MB in single precision.
CHUNK = 2**22


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

    Of these `parameters` of `net.protected()`, by name. Dropout is off, and the statistics of
    BatchNorm count as constants, so that every sample has a gradient of its own. These
    `processes` take turns at batches.
    """
    model, dtype = net.protected(), next(net.parameters()).dtype
    chosen = torch.randperm(len(task.train), generator=generator)[:samples]
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    with net.evaluating(), net.detached_batch_stats():
        found = batches(len(chosen), BATCH)
        for part in processes.take_turns(found) if processes else found:
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

    Nothing in the model may pass from one sample to another. A layer may be used several times.
    """
    matrices: dict[nn.Module, list[Site]] = {}
    for site in sites(model).values():
        if not isinstance(site.layer, nn.MultiheadAttention):  # which `_names` refuses
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
            used.setdefault(layer, []).append((x, g))
    sums: dict[str, Tensor] = {}
    for layer, calls in used.items():
        if isinstance(layer, TaskBatchNorm):
            found = _of_norm(layer, calls, measure)
        else:
            found = _of_weights(matrices[layer], calls, measure)
        prefix = f"{names[layer]}." if names[layer] else ""
        sums.update({prefix + name: value for name, value in found.items()})
    return sums


def _names(model: nn.Module, known: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """Return the layers with trainable parameters by name, and refuse other kinds than ours."""
    found = {}
    for name, layer in model.named_modules():
        if not any(p.requires_grad for p in layer.parameters(recurse=False)):
            continue
        if layer not in known and not isinstance(layer, TaskBatchNorm):
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) has parameters whose gradients per "
                "sample are not known here: use Linear, Conv and TaskBatchNorm with trainable "
                "weights, or freeze it with requires_grad_(False)"
            )
        found[layer] = name
    return found


@contextmanager
def _watched(
    layers: Iterable[nn.Module],
) -> Iterator[list[tuple[nn.Module, Tensor, GradientEdge]]]:
    """Record every use of these layers in the block: input, and where its output is in the graph.

    Inputs are copied, and the edge is taken right away, so that later in-place operations cannot
    change them. The hooks are gone when the block ends, however it ends.
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


def _of_weights(matrices: list[Site], calls: Calls, measure: Measure) -> dict[str, Tensor]:
    """Return the sums for the weight of a Linear layer or a convolution, and for its bias."""
    layer = matrices[0].layer
    weight = torch.cat([_of_matrix(site, calls, measure) for site in matrices])
    found = {"weight": weight.view(matrices[0].weight.shape)}
    if layer.bias is not None:
        shifts = [_positions(layer, g).sum(1) for _, g in calls]
        found["bias"] = measure(_added(shifts)).sum(0)
    return found


def _of_matrix(site: Site, calls: Calls, measure: Measure) -> Tensor:
    """Return Σ_i m(g_iᵀ x_i) (o x d)."""
    gradients = [_positions(site.layer, g)[..., site.start : site.stop] for _, g in calls]
    g = torch.cat(gradients, dim=1)  # n x positions x o
    count, positions, height = g.shape
    if positions == 1:
        return measure(g[:, 0]).T @ measure(site.rows(calls[0][0]))
    total = g.new_zeros(height, site.dimension)
    size = max(1, CHUNK // (site.dimension * max(height, positions)))
    for start in range(0, count, size):
        part = slice(start, start + size)
        rows = [site.rows(x[part]).view(len(g[part]), -1, site.dimension) for x, _ in calls]
        total += measure(g[part].transpose(1, 2) @ torch.cat(rows, dim=1)).sum(0)
    return total


def _of_norm(layer: TaskBatchNorm, calls: Calls, measure: Measure) -> dict[str, Tensor]:
    """Return the sums for scale and shift: l depends on them by g x̂ and g, over all positions.

    x̂ is what the layer makes of x with scale 1 and shift 0.
    """
    own = layer.task if layer.affine == "task" else 0
    one = torch.ones_like(layer.get_parameter(f"scale_{own}").detach())
    unit = {f"scale_{own}": one, f"shift_{own}": torch.zeros_like(one)}
    scales, shifts = [], []
    for x, g in calls:
        normal = functional_call(layer, unit, (x,))
        scales.append((g * normal).reshape(*g.shape[:2], -1).sum(2))
        shifts.append(g.reshape(*g.shape[:2], -1).sum(2))
    return {
        f"scale_{own}": measure(_added(scales)).sum(0),
        f"shift_{own}": measure(_added(shifts)).sum(0),
    }


def _positions(layer: nn.Module, g: Tensor) -> Tensor:
    """View gradients of outputs as (n x positions x o), in the order of `Site.rows`."""
    if isinstance(layer, nn.Linear):
        return g.reshape(len(g), -1, g.shape[-1])
    return g.flatten(2).transpose(1, 2)


def _added(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)
