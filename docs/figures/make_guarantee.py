"""Draw the figures of docs/guarantee.md: python docs/figures/make_guarantee.py, a few seconds.

Everything that is drawn is computed here with the library: a layer of three inputs, and a small
network that learns handwritten digits, 0 to 4 first and then 5 to 9, with projection and without.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import classgrad
from classgrad.benchmarks.digits import digits
from classgrad.core.selection import plain
from classgrad.core.subspace import Representation

FOLDER = Path(__file__).parent
WITH, WITHOUT, THIRD = "#2f6fa7", "#c2692b", "#6b7280"
# One look on light and dark pages: an almost white box. Text stays text, and the file is the same
# every time it is drawn.
STYLE: dict[Any, Any] = {
    "figure.facecolor": "#fafafa",
    "axes.facecolor": "#fafafa",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "classgrad",
}
SAMPLES = 125  # of the old digits, behind the bases
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99, 1.0)


@dataclass(frozen=True)
class Plane:
    """Inputs of a layer (n x 3), its protected basis (3 x 2), a gradient and what is left of it."""

    inputs: Tensor
    basis: Tensor
    gradient: Tensor
    projected: Tensor


@dataclass(frozen=True)
class Learnt:
    """What learning new digits did to the old ones.

    `before` and `after` are the outputs for old images; `moved` is ||ΔW C|| / (||ΔW|| ||C||) of the
    first layer, for the old images C behind its basis, of which `rank` directions are protected.
    """

    before: Tensor
    after: Tensor
    moved: float
    rank: int


def plane() -> Plane:
    """Return a layer's inputs that mostly lie in a plane, and a gradient for other inputs."""
    chance = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=chance, dtype=torch.float64)

    inputs = normal(60, 2) @ torch.tensor([[1.0, 0.3, 0.1], [-0.2, 0.9, 0.5]]).double()
    inputs = inputs + 0.06 * normal(60, 3)
    basis = plain(torch.zeros(3, 0).double(), Representation.of(inputs), 0.97).new
    weight = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    new = torch.tensor([0.9, 0.2, 1.6]).double() + 0.3 * normal(40, 3)
    nn.functional.softplus(-new @ weight.T).mean().backward()
    gradient = -weight.grad[0]  # the way a step goes
    return Plane(inputs, basis, gradient, gradient - basis @ (basis.T @ gradient))


def learn(energy: float | None) -> Learnt:
    """Learn digits 0 to 4, then 5 to 9: with the share ε of the old ones protected, or none."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU())
        heads = [nn.Linear(40, 5), nn.Linear(40, 5)]
    split = digits()[0]
    images = split.images.flatten(1) / 255
    old, new = split.labels < 5, split.labels >= 5
    guard = classgrad.attach(model, classgrad.GPM(energy=energy)) if energy else None

    def train(x: Tensor, y: Tensor, head: nn.Linear) -> None:
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.2)
        for _ in range(15):
            for rows in torch.arange(len(x)).split(32):
                loss = nn.functional.cross_entropy(head(model(x[rows])), y[rows])
                optimizer.zero_grad()
                with guard.step(optimizer) if guard else nullcontext():
                    loss.backward()
                    optimizer.step()

    train(images[old], split.labels[old], heads[0])
    shown = images[old][:SAMPLES]
    if guard:
        guard.end_task([(shown, split.labels[old][:SAMPLES])])
    weight = model[0].weight.detach().clone()
    with torch.no_grad():
        before = heads[0](model(shown))
        with torch.enable_grad():
            train(images[new], split.labels[new] - 5, heads[1])
        after = heads[0](model(shown))
    change = model[0].weight.detach() - weight
    moved = (change @ shown.T).norm() / (torch.linalg.matrix_norm(change, 2) * shown.norm())
    return Learnt(before, after, float(moved), guard.layer_ranks()[0].rank if guard else 0)


def draw_plane(found: Plane) -> Figure:
    """Draw the inputs, the plane, and a gradient with and without its part in the plane."""
    figure = Figure(figsize=(5.4, 4.2), layout="constrained")
    axes: Any = figure.add_subplot(projection="3d", elev=18, azim=-60)
    ends = torch.tensor([[-2.6, 2.6], [-2.6, 2.6]]).double()
    first, second = torch.meshgrid(ends[0], ends[1], indexing="ij")
    surface = [first * found.basis[i, 0] + second * found.basis[i, 1] for i in range(3)]
    axes.plot_surface(*(part.numpy() for part in surface), color=THIRD, alpha=0.2)
    axes.scatter(*found.inputs.T.numpy(), s=10, color=THIRD, label="inputs of old classes")
    scale = 3.2 / float(found.gradient.norm())
    for vector, color, label in (
        (found.gradient, WITHOUT, "step the new class wants"),
        (found.projected, WITH, "what is left of it"),
    ):
        tip = (scale * vector).tolist()
        axes.quiver(0, 0, 0, *tip, color=color, linewidth=2.2, arrow_length_ratio=0.1, label=label)
    pair = scale * torch.stack([found.gradient, found.projected])
    axes.plot(*pair.T.numpy(), "--", color=THIRD, label="removed: along the plane")
    axes.set(xlabel="input 1", ylabel="input 2", zlabel="input 3", aspect="equal")
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_ticklabels([])
    axes.legend(frameon=False, loc="upper left")
    return figure


def draw_outputs(without: Learnt, guarded: Learnt) -> Figure:
    """Draw the outputs for old images before and after the new digits."""
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    pairs = (("without projection", without, WITHOUT), ("with projection, ε = 0.97", guarded, WITH))
    for axes, (name, one, color) in zip(figure.subplots(1, 2, sharey=True), pairs, strict=True):
        low, high = float(without.after.min()), float(without.after.max())
        axes.plot([low, high], [low, high], color="#bbbbbb", zorder=0)
        axes.plot(one.before.flatten(), one.after.flatten(), ".", color=color, markersize=3)
        axes.set(title=name, xlabel="output before", aspect="equal")
    figure.axes[0].set_ylabel("output after the new digits")
    return figure


def draw_shares(found: dict[float, Learnt]) -> Figure:
    """Draw what old inputs feel of the new digits, and the room that protection takes."""
    figure = Figure(figsize=(7.4, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    bounds = [(1 - share) ** 0.5 for share in found]
    left.plot(list(found), bounds, "--", color=THIRD, label="bound, √(1 - ε)")
    left.plot(
        list(found), [one.moved for one in found.values()], "o-", color=WITH, label="measured"
    )
    left.set(xlabel="ε", ylabel="change of old outputs", ylim=(0, None))
    left.legend(frameon=False)
    right.plot(list(found), [one.rank for one in found.values()], "o-", color=WITH)
    right.set(xlabel="ε", ylabel="directions in use, of 64", ylim=(0, 64))
    return figure


def main() -> None:
    """Compute and draw everything."""
    torch.set_num_threads(1)  # sums of several threads round otherwise, and so would the figures
    shares = {share: learn(share) for share in SHARES}
    with matplotlib.rc_context(STYLE):
        for name, figure in {
            "plane": draw_plane(plane()),
            "outputs": draw_outputs(learn(None), shares[0.97]),
            "shares": draw_shares(shares),
        }.items():
            figure.savefig(FOLDER / f"guarantee-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
