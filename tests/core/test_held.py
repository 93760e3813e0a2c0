import pytest
import torch
from torch import nn

from classgrad.core import held
from classgrad.core.layers import sites
from classgrad.core.projector import Projection, ScaledProjection, SequentialProjection
from classgrad.core.subspace import Subspace

LABELS = torch.tensor([0, 2, 0, 2, 2, 0])  # class 1 has no image


class Branches(nn.Module):
    """Linear layers with one and with several rows for each image, and a convolution of groups."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.each = nn.Linear(5, 3)
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        self.each(x.flatten(1, 2))
        self.each(x[:, 0] + 1)
        return self.last(self.conv(x).flatten(1))


def basis(d, r, rng):
    return torch.linalg.qr(torch.randn(d, r, generator=rng, dtype=torch.float64)).Q


def rows_of_image(name, model, x):
    """The rows of every call of a layer, for one image (4 x 5 x 5)."""
    if name == "each":
        return torch.cat([x.reshape(-1, 5), x[0] + 1])
    if name == "last":
        return model.conv(x[None]).reshape(1, -1)
    channels = x[:2] if name == "conv[0]" else x[2:]
    places = [(0, 0), (0, 2), (2, 0), (2, 2)]
    return torch.stack([channels[:, i : i + 3, j : j + 3].reshape(-1) for i, j in places])


@pytest.mark.parametrize("numbers", [1, 2**22])
def test_held_is_what_projections_take_away(numbers, monkeypatch):
    """Of every kind: by a basis, with importances, one after another, and none at all."""
    monkeypatch.setattr(held, "MAX_NUMBERS", numbers)
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Branches()
    images = torch.rand(6, 4, 5, 5, generator=rng)
    found = sites(model)
    plain, scaled, one, two = (
        basis(18, 15, rng),
        basis(18, 4, rng),
        basis(5, 2, rng),
        basis(5, 1, rng),
    )
    importance = torch.tensor([1.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    eye = torch.eye(18, dtype=torch.float64), torch.eye(5, dtype=torch.float64)
    kept = {  # what a projection multiplies rows by
        "conv[0]": eye[0] - plain @ plain.T,
        "conv[1]": eye[0] - scaled @ torch.diag(importance) @ scaled.T,
        "each": (eye[1] - one @ one.T) @ (eye[1] - two @ two.T),
        "last": torch.eye(16, dtype=torch.float64),
    }
    projections = {
        "conv[0]": Projection(Subspace(plain), model.conv.weight),
        "conv[1]": ScaledProjection(Subspace(scaled), model.conv.weight, importance),
        "each": SequentialProjection([one, two], model.each.weight),
    }
    batches = [(images[:4], LABELS[:4]), (images[4:], LABELS[4:])]
    measured = held.held_energy(model, batches, found, projections, 3)
    assert list(measured) == list(kept)
    with torch.no_grad():
        for name, matrix in kept.items():
            for label in (0, 2):
                rows = [rows_of_image(name, model, x) for x in images[label == LABELS]]
                rows = torch.cat(rows).double()
                left = float((rows @ matrix).square().sum() / rows.square().sum())
                assert measured[name][label] == pytest.approx(1 - left, abs=1e-6)
            assert measured[name][1] is None
    assert measured["last"] == [0.0, None, 0.0]
