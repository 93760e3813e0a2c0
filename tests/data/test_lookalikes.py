"""Pictures that look alike are found whatever their order, and others are not."""

import pytest
import torch
from torch.nn import functional

from classgrad.data import lookalikes
from classgrad.data.lookalikes import ALIKE, EDGE, FEW, find_scenes
from classgrad.tasks import Split

SIZE = 48


def views(count, seed=1):
    """Return smooth random pictures (n, 3, SIZE + 8, SIZE + 8) with values from 0 to 255."""
    rng = torch.Generator().manual_seed(seed)
    coarse = 255 * torch.rand(count, 3, 6, 6, generator=rng)
    return functional.interpolate(coarse, SIZE + 8, mode="bicubic").clamp(0, 255)


def shot(view, x=0, y=0, contrast=1.0, brightness=0.0, noise=2.0, seed=1):
    """Return what a camera sees of pictures that it is moved over by some pixels."""
    seen = contrast * view[..., 4 + y : 4 + y + SIZE, 4 + x : 4 + x + SIZE] + brightness
    rng = torch.Generator().manual_seed(seed)
    seen = seen + noise * torch.randn(seen.shape, generator=rng)
    return seen.clamp(0, 255).round().to(torch.uint8)


def scenes_of(images, labels=None):
    labels = [0] * len(images) if labels is None else labels
    return find_scenes(Split(images, torch.as_tensor(labels)))


MOVES = [
    {"x": 1},
    {"y": -1, "contrast": 0.8},
    {"x": -1, "y": 1, "brightness": 20},
    {"contrast": 1.1, "noise": 5},
]


def test_shots_of_a_scene_are_found_and_other_pictures_are_not():
    view = views(12)
    shots = torch.cat([shot(view, seed=number, **move) for number, move in enumerate(MOVES)])
    numbers = scenes_of(shots).numbers
    assert numbers.tolist() == list(range(12)) * 4


def test_scenes_are_linked_by_what_lies_between():
    view = views(1, seed=3)
    steps = torch.cat([shot(view, x=x) for x in (-4, -2, 0, 2, 4)])
    assert scenes_of(steps[[0, 4]]).numbers.tolist() == [0, 1]
    assert scenes_of(steps).numbers.tolist() == [0] * 5


def similar(one, two):
    """Return how well each thumbnail is explained by the other and its derivatives."""

    def explained(t, u):
        padded = functional.pad(t, (1, 1, 1, 1), mode="replicate")[0]
        parts = [t[0], padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]]
        parts.append(padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1])
        a = torch.stack([(p - p.mean((1, 2), keepdim=True)).flatten() for p in parts], 1).double()
        b = (u[0] - u[0].mean((1, 2), keepdim=True)).flatten().double()
        rest = b - a @ torch.linalg.solve(a.T @ a, a.T @ b)
        return (1 - float(rest @ rest) / float(b @ b)) ** 0.5, float(torch.dot(a[:, 0], b))

    (left, product), (right, _) = explained(one, two), explained(two, one)
    return (left + right) / 2 if product > 0 else 0.0


def test_they_are_those_of_plain_least_squares(monkeypatch):
    monkeypatch.setattr(lookalikes, "BLOCK", 200)  # several blocks, and several chunks in each
    monkeypatch.setattr(lookalikes, "PAIRS", 7)
    rng = torch.Generator().manual_seed(1)
    view = views(6, seed=5)
    number = torch.randint(6, (24,), generator=rng)
    share = torch.rand(24, 1, 1, 1, generator=rng) * 0.4
    images = shot((1 - share) * view[number] + share * views(24, seed=6), noise=0)
    labels = number % 3
    labels[share.argmin()] += 3
    found = scenes_of(images, labels)

    tiny = functional.adaptive_avg_pool2d(images.float(), EDGE).split(1)
    wanted, across = list(range(24)), set()
    for i in range(24):
        for j in range(i + 1, 24):
            if similar(tiny[i], tiny[j]) > ALIKE[0]:
                if labels[i] != labels[j]:
                    across |= {i, j}
                    continue
                low, high = sorted((wanted[i], wanted[j]))
                wanted = [low if number == high else number for number in wanted]
    assert 8 < len(set(wanted)) < 20
    assert found.numbers.tolist() == wanted
    assert found.pictures_across == len(across)
    assert 2 <= len(across) <= FEW
    assert {number for pair in found.across for number in pair} == across


def test_their_order_and_how_they_are_given_do_not_matter():
    view = views(10, seed=2)
    images = torch.cat([shot(view), shot(view[:4], x=1)])
    numbers = scenes_of(images).numbers
    order = torch.randperm(14, generator=torch.Generator().manual_seed(1))
    mixed = scenes_of(images[order]).numbers
    assert torch.equal(
        numbers[:, None] == numbers, (mixed[:, None] == mixed)[order.argsort()][:, order.argsort()]
    )
    zeros = torch.zeros(14, dtype=torch.int64)
    parts = [
        Split(images[:5], zeros[:5]),
        Split(images[5:], zeros[5:]),
        Split(images[:0], zeros[:0]),
    ]
    assert torch.equal(find_scenes(*parts).numbers, numbers)
    for other in (images / 255, images.float().sub(99).div(37)):
        assert torch.equal(scenes_of(other).numbers, numbers)
    grey = scenes_of(images.float().mean(1, keepdim=True).to(torch.uint8)).numbers
    assert torch.equal(grey, numbers)


def test_flat_and_dark_pictures_are_not_all_alike():
    rng = torch.Generator().manual_seed(1)
    black = torch.randint(0, 3, (6, 3, SIZE, SIZE), generator=rng, dtype=torch.uint8)
    grey = torch.full((4, 3, SIZE, SIZE), 0.3)
    sky = (
        torch.tensor([90, 140, 220.0])[:, None, None]
        + 8 * torch.randn(6, 3, SIZE, SIZE, generator=rng)
    ).to(torch.uint8)
    dark = (shot(views(6)) // 12).clamp(max=255)
    for images in (black, grey, sky, dark):
        assert scenes_of(images).numbers.tolist() == list(range(len(images)))
    again = torch.cat([dark, shot(views(6), x=1) // 12])
    assert scenes_of(again).numbers.tolist() == list(range(6)) * 2


def test_those_of_two_classes_are_named_and_stay_apart():
    view = views(30)
    images = torch.cat([shot(view), shot(view[:1], x=1), shot(view[1:2], noise=0)])
    found = scenes_of(images, [0] * 30 + [1, 1])
    assert found.numbers.tolist() == list(range(32))
    assert set(found.across) == {(0, 30), (1, 31)}
    assert found.across[0] == (1, 31)  # not moved, so more alike
    assert found.pictures_across == 4


def test_where_everything_looks_alike_only_what_is_more_so_is_of_one_scene():
    background = views(1)
    things = 0.82 * background + 0.18 * views(20, seed=2)
    images = shot(things, noise=0)
    labels = [0, 1] * 10
    assert len(scenes_of(images).numbers.unique()) < 3  # nothing tells that they are not
    alone = scenes_of(images, labels)
    assert alone.numbers.tolist() == list(range(20))
    again = scenes_of(torch.cat([images, shot(things[:1])]), [*labels, 0])
    assert again.numbers.tolist() == [*range(20), 0]
    copies = scenes_of(torch.cat([images, images]), labels + [1 - label for label in labels])
    assert copies.numbers.tolist() == list(range(40))  # in two classes each
    assert copies.pictures_across == 40


@pytest.mark.parametrize("shape", [(5,), (2, 30, 30), (3, EDGE - 1, 30), (4, 3, 12, 12)])
def test_other_data_look_like_nothing_else(shape):
    assert scenes_of(torch.ones(3, *shape)).numbers.tolist() == [0, 1, 2]


def test_many_shots_of_one_scene_take_no_longer_than_others(monkeypatch):
    compared = []
    explained = lookalikes._explained
    monkeypatch.setattr(
        lookalikes, "_explained", lambda b, u: compared.append(len(u)) or explained(b, u)
    )
    images = shot(views(1).expand(600, -1, -1, -1))
    assert not scenes_of(images).numbers.any()
    assert sum(compared) < 10 * 600  # of 180,000 pairs
