"""Conversion of a user's own network: layers are replaced by those a stream of tasks needs."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from classgrad.errors import UserError
from classgrad.networks.layers import Dropout, FixedNorm, TaskBatchNorm

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUTS = (nn.Dropout,)


Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def adapted(trunk: nn.Module) -> nn.Module:
    """Return a copy of a trunk that tasks can share.

    BatchNorm with running statistics becomes a norm with statistics, scale and shift for each task,
    which start from the values it has; dropout becomes one that draws from a passed generator, so
    that training can be repeated to the bit.
    """
    return converted(trunk, task_norm)


def with_fixed_norms(trunk: nn.Module) -> nn.Module:
    """Return a copy of a trunk none of whose layers learns: features that stay as they are.

    BatchNorm with running statistics becomes the fixed scale and shift that it is at test time.
    """
    return converted(trunk, fixed_norm).requires_grad_(False)


def converted(trunk: nn.Module, convert: Callable[[Norm], nn.Module]) -> nn.Module:
    """Return a copy of a trunk with its norms converted, and our own dropout."""
    trunk = copy.deepcopy(trunk)
    if isinstance(trunk, NORMS + DROPOUTS):
        raise UserError("the trunk is a single layer without weights: give a network")
    for module in list(trunk.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, NORMS) and layer.track_running_stats:
                setattr(module, name, convert(layer))
            elif isinstance(layer, DROPOUTS):
                setattr(module, name, Dropout(layer.p))
    return trunk


def fixed_norm(layer: Norm) -> FixedNorm:
    """Return what a layer is at test time."""
    norm = FixedNorm(layer.num_features, layer.eps).to(layer.running_mean)
    known = layer.state_dict()
    norm.load_state_dict({name: known.get(name, v) for name, v in norm.state_dict().items()})
    return norm


def task_norm(layer: Norm) -> TaskBatchNorm:
    """Return a norm for a stream of tasks that starts from a layer's values."""
    momentum = 0.1 if layer.momentum is None else layer.momentum
    norm = TaskBatchNorm(layer.num_features, "stored", "task", momentum, layer.eps)
    norm.to(layer.running_mean).train(layer.training)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    values = {"mean_0": layer.running_mean, "variance_0": layer.running_var}
    if layer.affine:
        values |= {"scale_0": layer.weight.detach(), "shift_0": layer.bias.detach()}
    norm.load_state_dict({**norm.state_dict(), **values})
    return norm


def width_of(trunk: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return the size of a trunk's output for one input."""
    training = trunk.training
    like = next(trunk.parameters())
    x = torch.zeros(2, *input_shape, dtype=like.dtype, device=like.device)
    try:
        with torch.no_grad():
            output = trunk.eval()(x)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"the trunk refuses inputs of shape {input_shape}: {reason}") from None
    finally:
        trunk.train(training)
    if output.dim() != 2 or len(output) != 2:
        raise UserError(
            f"the trunk's output for 2 inputs has shape {tuple(output.shape)}: it has to be "
            "(2, embedding)"
        )
    return int(output.shape[1])
