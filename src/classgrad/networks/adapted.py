"""Conversion of a user's own network: layers are replaced by those a stream of tasks needs."""

import copy

import torch
from torch import nn

from classgrad.errors import UserError
from classgrad.networks.layers import Dropout, TaskBatchNorm

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUTS = (nn.Dropout,)


def adapted(trunk: nn.Module) -> nn.Module:
    """Return a copy of a trunk that tasks can share.

    BatchNorm with running statistics becomes a norm with statistics, scale and shift for each task,
    which start from the values it has; dropout becomes one that draws from a passed generator, so
    that training can be repeated to the bit.
    """
    trunk = copy.deepcopy(trunk)
    if isinstance(trunk, NORMS + DROPOUTS):
        raise UserError("the trunk is a single layer without weights: give a network")
    for module in list(trunk.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, NORMS) and layer.track_running_stats:
                setattr(module, name, task_norm(layer))
            elif isinstance(layer, DROPOUTS):
                setattr(module, name, Dropout(layer.p))
    return trunk


def task_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> TaskBatchNorm:
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
