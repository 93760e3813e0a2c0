"""Layers and parameters that gradient projection cannot protect are refused, by name."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from classgrad.core.attention import refuse_positions_first
from classgrad.core.layers import is_norm, layer_kind
from classgrad.errors import UserError


def refuse_unprotectable(model: nn.Module) -> None:
    """Refuse, by name, every trainable layer whose outputs for old inputs could not be kept."""
    for name, module in model.named_modules():
        if is_norm(module) and getattr(module, "track_running_stats", False):
            raise UserError(
                f"layer '{name}' ({type(module).__name__}) has running statistics, which every new "
                "task would change: use classgrad.networks.TaskBatchNorm, which stores them for "
                "each task, or track_running_stats=False"
            )
        refuse_positions_first(name, module)
        if layer_kind(module) is not None or is_norm(module):
            continue
        for label, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                where = f"{name}.{label}" if name else label
                raise UserError(
                    f"parameter '{where}' of a {type(module).__name__} cannot be protected: freeze "
                    "it with requires_grad_(False), or build that part from Linear and Conv layers"
                )


def refuse_bypassed(
    model: nn.Module, run: Callable[[], Tensor], called: Collection[nn.Module]
) -> None:
    """Refuse, by name, parameters that affect the output although their layer was not called.

    The inputs of such a weight were not recorded.
    """
    unseen = {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, module in model.named_modules()
        if module not in called
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    }
    if not unseen:
        return
    with torch.enable_grad():
        total = run().sum()
    if not total.requires_grad:
        return
    gradients = torch.autograd.grad(total, list(unseen.values()), allow_unused=True)
    for name, gradient in zip(unseen, gradients, strict=True):
        if gradient is not None:
            raise UserError(
                f"parameter '{name}' is used without a call of its layer, so its inputs cannot be "
                "seen: call the layer, or freeze it with requires_grad_(False)"
            )
