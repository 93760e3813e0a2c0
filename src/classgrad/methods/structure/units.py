"""What DEN does to units: find those a head reaches, shrink, drop and split them."""

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.methods.structure.growing import extended, rearrange, spread, width, wires
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.networks.trunk import Wire
from classgrad.prediction.accuracy import inputs
from classgrad.tasks import Task


def reached(net: Network) -> dict[str, Tensor]:
    """Tell of every unit whether the newest head reaches it through non-zero weights."""
    through = (net.head_parameters(len(net.heads) - 1)[0] != 0).any(0)
    found = {}
    for wire, layer, _ in reversed(wires(net)):
        found[wire.target] = through.view(layer.weight.shape[0], -1).any(1)  # any position
        seen = (layer.weight[found[wire.target]] != 0).any(0)
        through = seen.reshape(len(seen), -1).any(1)
    return found


@torch.no_grad()
def loss_of(net: Network, task: Task) -> float:
    """Return the mean cross-entropy on validation data, or on training data without any."""
    split = task.valid if len(task.valid) else task.train
    total = 0.0
    with net.evaluating():
        for index, x in inputs(net, split, task.transform):
            loss = functional.cross_entropy(net(x, task.id), split.labels[index], reduction="sum")
            total += float(loss)
    return total / len(split)


def soft_threshold(values: Tensor, threshold: float | Tensor) -> None:
    """Bring every value nearer to zero by `threshold`, in place, and not beyond it.

    >>> values = torch.tensor([0.5, -0.5, 0.2])
    >>> soft_threshold(values, 0.25)
    >>> values.tolist()
    [0.25, -0.25, 0.0]
    """
    values.copy_(values.sign() * (values.abs() - threshold).clamp(min=0))


def shrink_groups(groups: list[Tensor], threshold: float) -> None:
    """Shorten each group, a row of all these tensors together, by `threshold`, in place.

    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> shrink_groups([rows], 1.0)
    >>> [[round(value, 4) for value in row] for row in rows.tolist()]
    [[2.4, 3.2], [0.0, 0.0]]
    """
    norms = torch.stack([g.flatten(1).square().sum(1) for g in groups]).sum(0).sqrt()
    tiny = torch.finfo(norms.dtype).tiny
    factors = (1 - threshold / norms.clamp(min=tiny)).clamp(min=0)
    for group in groups:
        group.mul_(factors.view(-1, *[1] * (group.dim() - 1)))


def unit_groups(net: Network, before: dict[str, int]) -> dict[str, list[Tensor]]:
    """Return, for each layer, views of what makes the values of its units behind the first."""
    found = {}
    for wire, layer, norm in wires(net):
        groups = [layer.weight.detach()]
        if layer.bias is not None:
            groups.append(layer.bias.detach()[:, None])
        if norm is not None:
            scale, shift, *_ = norm.values(len(net.heads) - 1)
            groups += [norm.get_parameter(name).detach()[:, None] for name, _ in (scale, shift)]
        found[wire.target] = [group[before[wire.target] :] for group in groups]
    return found


def drop_zeros(net: Network, before: dict[str, int]) -> None:
    """Take out the units behind the first so many whose value is always zero."""
    taken = {}
    for target, groups in unit_groups(net, before).items():
        alive = torch.stack([group.flatten(1).any(1) for group in groups]).any(0)
        kept = before[target] + alive.nonzero().flatten().cpu()
        taken[target] = torch.cat([torch.arange(before[target]), kept])
    if any(len(taken[target]) < number for target, number in width(net).items()):
        rearrange(net, taken)


@torch.no_grad()
def split(
    net: Network, copied: dict[str, list[int]], old: dict[str, Tensor], before: dict[str, int]
) -> dict[str, Tensor]:
    """Copy units, give the originals their old values back, and return what copies are drawn to.

    Units behind the first `before`, copies among them, and the head see a copy in its original's
    place. `old` has the values of what tasks share, as the last task left them, by name; what is
    returned has those for the copies too, and the present values of everything else.
    """
    start = width(net)
    rearrange(net, {t: extended(torch.arange(n), copied[t]) for t, n in start.items()})
    drawn_to = {}
    for wire, layer, _ in wires(net):
        numbers = torch.tensor(copied[wire.target], dtype=torch.int64)
        first = start[wire.target]
        weight = layer.weight.detach()
        columns, behind = torch.zeros(0, dtype=torch.int64), weight.shape[1]
        if wire.source is not None:
            positions = weight.shape[1] // width(net)[wire.source]
            columns = spread(torch.tensor(copied[wire.source], dtype=torch.int64), positions)
            behind = positions * start[wire.source]
        weight[: before[wire.target], behind:] = 0
        weight[before[wire.target] :, columns] = 0
        for name, values in shared_values(net, wire):
            saved = old[name]
            if saved.dim() == 1:
                values[numbers] = saved[numbers]
            else:
                values[numbers, : saved.shape[1]] = saved[numbers]
            pull = values.clone()
            pull[first:] = values[numbers]
            if values.dim() > 1:  # the old weights, from copies in place of originals
                pull[first:, behind:] = pull[first:, columns]
                pull[first:, columns] = 0
            drawn_to[name] = pull
    target = wires(net)[-1][0].target
    head = net.head_parameters(len(net.heads) - 1)[0].detach()
    positions = head.shape[1] // width(net)[target]
    head[:, spread(torch.tensor(copied[target], dtype=torch.int64), positions)] = 0
    return drawn_to


def shared_values(net: Network, wire: Wire) -> list[tuple[str, Tensor]]:
    """Return what makes the values of a layer's units and is shared by tasks, by name."""
    found = {f"{wire.layer}.weight", f"{wire.layer}.bias"}
    norm = wire.norm and net.trunk.get_submodule(wire.norm)
    if isinstance(norm, TaskBatchNorm) and norm.affine == "first":
        found |= {f"{wire.norm}.scale_0", f"{wire.norm}.shift_0"}
    named = net.trunk.named_parameters()
    return [(f"trunk.{name}", p.detach()) for name, p in named if name in found]
