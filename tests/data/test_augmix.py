"""AugMix against Pillow, its published parameters and its published distributions."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from sklearn.datasets import load_sample_images
from torch import Tensor

from benchmarks.pillow import OPERATIONS as PILLOW
from benchmarks.pillow import to_pillow
from classgrad.data.augmix import ALL, OPERATIONS, STANDARD, augmix, crop, dirichlet, flip
from classgrad.errors import UserError

GREY, COLOUR, TINY = (1, 28, 28), (3, 32, 32), (1, 8, 8)
# m = 1/2 and equal weights within 1e-5: what is left to chance is the chains alone.
EVEN = 1e12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Return uint8 (count, C, H, W): photographs, plain noise and noisy waves in turn."""
    channels, height, width = shape
    rng = np.random.default_rng(seed)
    photographs = load_sample_images().images
    rows, columns = np.mgrid[:height, :width]
    images = []
    for index in range(count):
        if index % 3 == 0:
            photograph = photographs[rng.integers(2)][:: rng.integers(1, 5), :: rng.integers(1, 5)]
            top = rng.integers(photograph.shape[0] - height)
            left = rng.integers(photograph.shape[1] - width)
            image = photograph[top : top + height, left : left + width, :channels]
        elif index % 3 == 1:
            image = rng.integers(0, 256, (height, width, channels))
        else:
            across, down, start = rng.uniform(1, 6, (3, channels))
            phase = columns[..., None] / width * across + rows[..., None] / height * down + start
            wave = 128 + 80 * np.sin(phase) + rng.normal(0, 8, (height, width, channels))
            image = wave.clip(0, 255)
        images.append(np.moveaxis(image, -1, 0))
    return torch.from_numpy(np.stack(images).astype(np.uint8))


def from_pillow(image: Image.Image) -> Tensor:
    array = np.asarray(image)
    return torch.from_numpy(
        np.moveaxis(array[..., None] if array.ndim == 2 else array, -1, 0).copy()
    )


def test_sets_are_the_published_ones() -> None:
    assert set(ALL) == set(OPERATIONS) == set(PILLOW)
    assert set(ALL) - set(STANDARD) == {"color", "contrast", "brightness", "sharpness"}
    assert (len(STANDARD), len(ALL)) == (9, 13)


@pytest.mark.parametrize("shape", [COLOUR, GREY, TINY, (3, 2, 2), (1, 17, 40)])
@pytest.mark.parametrize("name", ALL)
def test_operation_equals_pillow(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(60, shape)
    rng = np.random.default_rng(1)
    level, sign = rng.uniform(0.1, 9.99, 60), rng.choice([-1, 1], 60)
    before = images.clone()
    result = OPERATIONS[name](images, torch.from_numpy(level), torch.from_numpy(sign))
    expected = torch.stack(
        [
            from_pillow(PILLOW[name](to_pillow(image), float(one), int(way)))
            for image, one, way in zip(images, level, sign, strict=True)
        ]
    )
    assert result.dtype == torch.uint8
    assert images.equal(before), "the input was written to"
    difference = (result.int() - expected.int()).abs()
    # Measured: 0 but for single pixels, one level off where a value falls on a whole number.
    assert difference.max() <= 1
    assert difference.double().mean() <= 1e-3
    still = (name == "equalize" and images[0, 0].numel() < 256) or (
        name == "color" and shape[0] == 1
    )
    still = still or (name == "sharpness" and min(shape[1:]) < 3)
    still = still or (name.startswith("translate") and min(shape[1:]) < 3)
    assert bool((expected != images).any()) != still


@given(
    shape=st.tuples(
        st.integers(0, 5), st.sampled_from([1, 3]), st.integers(2, 12), st.integers(2, 12)
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    severity=st.floats(0.01, 10),
    width=st.integers(1, 4),
    depth=st.none() | st.integers(1, 4),
    alpha=st.floats(1e-3, 1e3),
    operations=st.sampled_from(["standard", "all"])
    | st.lists(st.sampled_from(ALL), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_result_is_an_image_made_by_the_generator_alone(
    shape, dtype, severity, width, depth, alpha, operations, seed
) -> None:
    images = torch.rand(shape, dtype=dtype, generator=seeded(seed))
    before, state = images.clone(), torch.random.get_rng_state()
    options = {
        "severity": severity,
        "width": width,
        "depth": depth,
        "alpha": alpha,
        "operations": operations,
    }
    result = augmix(images, generator=seeded(seed), **options)
    assert result.shape == images.shape
    assert result.dtype == dtype
    assert bool(((result >= 0) & (result <= 1)).all())
    assert result.equal(augmix(images, generator=seeded(seed), **options))
    assert images.equal(before)
    assert torch.random.get_rng_state().equal(state)


def test_generator_moves_on_and_seeds_differ() -> None:
    images = pictures(8, COLOUR) / 255
    generator = seeded(3)
    first, second = augmix(images, generator=generator), augmix(images, generator=generator)
    assert not first.equal(second)
    assert first.equal(augmix(images, generator=seeded(3)))
    assert not first.equal(augmix(images, generator=seeded(4)))


def test_each_image_draws_its_own_and_ignores_the_others() -> None:
    images = (pictures(1, COLOUR) / 255).expand(32, -1, -1, -1)
    result = augmix(images, generator=seeded())
    assert len(result.flatten(1).unique(dim=0)) == 32
    changed = images.clone()
    changed[5] = 1 - changed[5]
    other = augmix(changed, generator=seeded())
    same = (result == other).flatten(1).all(1)
    assert same.sum() == 31
    assert not same[5]


def test_memory_layout_does_not_matter() -> None:
    images = pictures(12, COLOUR) / 255
    result = augmix(images, generator=seeded(), operations="all")
    last = images.contiguous(memory_format=torch.channels_last)
    assert result.equal(augmix(last, generator=seeded(), operations="all"))


@pytest.mark.parametrize(
    ("shape", "operations"),
    [(GREY, ["color"]), (TINY, ["equalize"]), ((3, 2, 2), ["sharpness", "translate_x"])],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identities_give_the_image_back(shape, operations, dtype) -> None:
    images = pictures(30, shape).to(dtype) / 255
    result = augmix(images, generator=seeded(), operations=operations)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert (result - images).abs().max() <= tolerance
    assert (augmix(images, generator=seeded()) - images).abs().max() > 0.05


def test_constants_stay_constant_because_the_coefficients_sum_to_one() -> None:
    values = torch.arange(256, dtype=torch.float64) / 255
    images = values.view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    operations = ["autocontrast", "equalize", "color", "contrast", "sharpness"]
    for width, alpha in itertools.product((1, 4), (0.1, 1.0, 7.0)):
        result = augmix(images, generator=seeded(), width=width, alpha=alpha, operations=operations)
        assert (result - images).abs().max() <= 1e-14


def test_rounding_never_leaves_the_unit_interval() -> None:
    # Four rounded coefficients give up to 1 + 1.2e-7, above 1 for one image in six, before the cut.
    white = torch.ones(1000, 1, 2, 2)
    result = augmix(white, generator=seeded(), operations=["equalize"])
    assert result.max() == 1
    assert result.min() >= 1 - 1e-6


def test_values_between_the_eight_bit_levels_move_by_half_a_level_at_most() -> None:
    images = torch.rand(40, *TINY, dtype=torch.float64, generator=seeded())
    difference = (augmix(images, generator=seeded(), operations=["equalize"]) - images).abs()
    assert 0.3 / 255 < difference.max() <= 0.5 / 255


def test_share_is_uniform_and_lies_between_image_and_chain() -> None:
    images = (pictures(30, TINY)[2::3].double() / 255 * 0.5 + 0.2).repeat(200, 1, 1, 1)
    images = (images * 255).round() / 255
    ones = torch.ones(len(images))
    chain = OPERATIONS["autocontrast"]((images * 255).round().to(torch.uint8), ones, ones) / 255.0
    result = augmix(images, generator=seeded(), depth=1, operations=["autocontrast"])
    way = chain.double() - images
    share = ((result - images) * way).sum((1, 2, 3)) / way.square().sum((1, 2, 3))
    assert (images + share.view(-1, 1, 1, 1) * way - result).abs().max() <= 1e-7
    assert stats.kstest(share, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("alpha", [0.2, 0.6, 1.0, 6.0])
@pytest.mark.parametrize("width", [2, 3])
def test_weights_follow_the_dirichlet_distribution(alpha: float, width: int) -> None:
    weights = dirichlet(alpha, (20000, width), seeded(1)).numpy()
    assert abs(weights.sum(1) - 1).max() <= 1e-12
    for column in weights.T:
        assert stats.kstest(column, stats.beta(alpha, (width - 1) * alpha).cdf).pvalue > 1e-4
    # The components of one row vary against each other: cov = -var / (width - 1).
    variance = (width - 1) / width**2 / (width * alpha + 1)
    covariance = np.cov(weights[:, 0], weights[:, 1])[0, 1]
    assert covariance == pytest.approx(-variance / (width - 1), rel=0.05)


@pytest.mark.parametrize("alpha", [1e-310, 1e-5, 1e300])
def test_weights_stay_finite_at_extreme_alpha(alpha: float) -> None:
    weights = dirichlet(alpha, (500, 3), seeded())
    assert (weights.sum(1) - 1).abs().max() <= 1e-12
    if alpha == 1e300:
        assert (weights - 1 / 3).abs().max() <= 1e-12


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_mixture_follows_the_published_recipe(alpha, monkeypatch) -> None:
    def coin(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
        return images + (255 * (sign > 0)).to(torch.uint8).view(-1, 1, 1, 1)

    monkeypatch.setitem(OPERATIONS, "solarize", coin)
    black = torch.zeros(5000, 1, 2, 2, dtype=torch.float64)
    result = augmix(
        black, generator=seeded(2), depth=1, width=3, alpha=alpha, operations=["solarize"]
    )
    rng = np.random.default_rng(0)
    weights = rng.dirichlet([alpha] * 3, 5000)
    heads = rng.integers(0, 2, (5000, 3))
    expected = rng.beta(alpha, alpha, 5000) * (weights * heads).sum(1)
    assert stats.ks_2samp(result[:, 0, 0, 0], expected).pvalue > 1e-4


def test_levels_signs_and_operations_are_drawn_evenly(monkeypatch) -> None:
    seen: dict[str, list[Tensor]] = {"posterize": [], "solarize": []}

    def watch(name):
        def operation(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
            seen[name].append(torch.stack((level, sign.double())))
            return images

        return operation

    for name in seen:
        monkeypatch.setitem(OPERATIONS, name, watch(name))
    images = torch.rand(1000, 1, 2, 2, generator=seeded())
    augmix(images, generator=seeded(), severity=4, depth=2, operations=list(seen))
    first, second = (torch.cat(parts, dim=1).numpy() for parts in seen.values())
    assert first.shape[1] + second.shape[1] == 6000
    for level, sign in (first, second):
        assert stats.kstest(level, stats.uniform(0.1, 3.9).cdf).pvalue > 1e-4
        assert set(sign) == {-1, 1}
        assert stats.binomtest(int((sign > 0).sum()), len(sign)).pvalue > 1e-4
    assert stats.binomtest(first.shape[1], 6000).pvalue > 1e-4
    # Batched: two runs of each operation for 3000 chains of two steps.
    assert [len(parts) for parts in seen.values()] == [2, 2]


@pytest.mark.parametrize("depth", [None, 1, 2, 5])
def test_depth_is_even_over_one_two_three_or_as_given(depth, monkeypatch) -> None:
    monkeypatch.setitem(OPERATIONS, "solarize", lambda images, level, sign: images + 1)
    black = torch.zeros(3000, 1, 2, 2, dtype=torch.float64)
    result = augmix(
        black, generator=seeded(), width=1, depth=depth, alpha=EVEN, operations=["solarize"]
    )
    steps = (result[:, 0, 0, 0] * 2 * 255).numpy()
    assert abs(steps - steps.round()).max() <= 1e-3
    values, counts = np.unique(steps.round(), return_counts=True)
    assert values.tolist() == ([1, 2, 3] if depth is None else [depth])
    if depth is None:
        assert stats.chisquare(counts).pvalue > 1e-4


def test_chains_are_those_of_pillow_step_by_step() -> None:
    """With m = 1/2 the chain is 2 result - x: it must be one of the 81 possible ones."""
    image = pictures(1, (3, 32, 32))
    single = [("posterize", level, 1) for level in (1.0, 2.6)]
    # At severity 3 a width of 32 moves by int(level 32/3 / 10): up to 3 pixels, either way.
    single += [("translate_x", level, sign) for level in (0.99, 1.9, 2.9) for sign in (-1, 1)]
    single += [("translate_x", 0.5, 1)]
    possible = []
    for pair in itertools.product(single, repeat=2):
        result = to_pillow(image[0])
        for name, level, sign in pair:
            result = PILLOW[name](result, level, sign)
        possible.append(from_pillow(result))
    known = torch.stack(possible).flatten(1).unique(dim=0).double()
    images = (image.double() / 255).expand(600, -1, -1, -1)
    mixed = augmix(
        images,
        generator=seeded(),
        width=1,
        depth=2,
        alpha=EVEN,
        operations=["posterize", "translate_x"],
    )
    chains = ((2 * mixed - images) * 255).flatten(1)
    distance, nearest = torch.cdist(chains, known, p=float("inf")).min(1)
    assert distance.max() <= 0.01
    # The rarest pair, 3 pixels twice the same way, has a chance of 1 in 4000.
    assert len(nearest.unique()) > 0.75 * len(known)


def test_severity_bounds_the_change() -> None:
    images = pictures(60, COLOUR) / 255
    mild, strong = (
        (augmix(images, generator=seeded(), severity=severity, operations=["rotate"]) - images)
        .abs()
        .mean()
        for severity in (0.3, 10)
    )
    # int(0.3 · 30 / 10) = 0 degrees: nothing turns.
    assert mild <= 1e-6
    assert strong > 0.02


def test_crop_cuts_a_window_drawn_evenly_for_each_image() -> None:
    image = torch.arange(1.0, 37.0).view(1, 1, 6, 6)
    images = torch.cat((image, -image), dim=1).expand(2500, -1, -1, -1)
    state = torch.random.get_rng_state()
    result = crop(images, padding=2, generator=seeded())
    assert torch.random.get_rng_state().equal(state)
    assert result.equal(crop(images, padding=2, generator=seeded()))
    code = result[:, 0, 3, 3].long() - 1
    top, left = code // 6 - 1, code % 6 - 1
    padded = torch.nn.functional.pad(images[0], (2, 2, 2, 2))
    for index in range(100):
        y, x = int(top[index]), int(left[index])
        assert result[index].equal(padded[:, y : y + 6, x : x + 6])
    counts = torch.bincount(5 * top + left, minlength=25)
    assert len(counts) == 25
    assert stats.chisquare(counts).pvalue > 1e-4
    assert crop(images, padding=0, generator=seeded()).equal(images)


def test_flip_mirrors_half_of_the_images() -> None:
    images = torch.rand(2000, 3, 4, 5, generator=seeded())
    state = torch.random.get_rng_state()
    result = flip(images, generator=seeded())
    assert torch.random.get_rng_state().equal(state)
    assert result.equal(flip(images, generator=seeded()))
    kept = (result == images).flatten(1).all(1)
    mirrored = (result == images.flip(-1)).flatten(1).all(1)
    assert bool((kept ^ mirrored).all())
    assert stats.binomtest(int(kept.sum()), 2000).pvalue > 1e-4


@pytest.mark.parametrize("function", [augmix, crop, flip])
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(4, 784), r"\(4, 784\).*reshape"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), r"torch\.uint8.*convert"),
    ],
)
def test_wrong_images_are_named(function, images, message) -> None:
    with pytest.raises(UserError, match=message) as caught:
        function(images, generator=seeded())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (torch.zeros(2, 4, 8, 8), {}, "4 channels: give 1 or 3"),
        (torch.zeros(2, 3, 1, 8), {}, "too small"),
        (torch.full((2, 3, 8, 8), -0.5), {}, r"from -0\.5 to -0\.5: scale"),
        (torch.full((2, 3, 8, 8), 255.0), {}, "to 255: scale"),
        (torch.full((2, 3, 8, 8), float("nan")), {}, "nan"),
        (None, {"severity": 0}, "severity is 0"),
        (None, {"severity": 10.5}, r"severity is 10\.5"),
        (None, {"severity": float("nan")}, "severity is nan"),
        (None, {"width": 0}, "width is 0"),
        (None, {"depth": 0}, "depth is 0"),
        (None, {"alpha": 0.0}, r"alpha is 0\.0"),
        (None, {"alpha": -1.0}, r"alpha is -1\.0"),
        (None, {"alpha": float("inf")}, "alpha is inf"),
        (None, {"operations": []}, "operations is empty"),
        (None, {"operations": ["rotate", "sheer_x"]}, "unknown operation 'sheer_x'.*'shear_x'"),
        (None, {"operations": "standart"}, "unknown operation set 'standart'.*'standard'"),
    ],
)
def test_wrong_arguments_are_named(images, options, message) -> None:
    images = torch.zeros(2, 3, 8, 8) if images is None else images
    with pytest.raises(UserError, match=message) as caught:
        augmix(images, generator=seeded(), **options)
    assert "\n" not in str(caught.value)


def test_negative_padding_is_named() -> None:
    with pytest.raises(UserError, match="padding is -1"):
        crop(torch.zeros(1, 1, 4, 4), padding=-1, generator=seeded())
