"""What makes training steps faster: an optimiser in one pass, and compiled networks."""

import os
from shutil import which

import torch

from classgrad.errors import UserError
from classgrad.networks.network import Network


def compile_trunk(net: Network) -> None:
    """Compile the trunk for the training steps of one task."""
    if not any(which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise UserError("compile needs a C++ compiler, and there is none: leave it out")
    torch.compiler.reset()  # tasks have layers of their own; what was compiled for others is stale
    net.trunk.compile()


def prepare(optimizer: torch.optim.Optimizer) -> None:
    """Give a fused optimiser what it takes for granted.

    It goes blindly through gradients as their weights lie in memory. And it has a momentum for all
    weights or for none, though a weight may get its first gradient later: zero gives the same.
    """
    for group in optimizer.param_groups:
        here = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in here:
            if parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        states = [optimizer.state[parameter] for parameter in here]
        moving = [state.get("momentum_buffer") is not None for state in states]
        if any(moving) and not all(moving):
            for parameter, state in zip(here, states, strict=True):
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
