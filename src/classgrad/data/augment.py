"""Augmentation of training images, by the names of the training setting `augment`."""

from typing import Literal

from torch import Generator, Tensor

from classgrad.data.augmix import augmix, crop, flip, refuse_range
from classgrad.errors import UserError
from classgrad.tasks import Augment

AugmentName = Literal["none", "flip", "crop-flip", "augmix"]


def augmentation(name: AugmentName) -> Augment | None:
    """Return the function of a name; for "none" there is none."""
    return FUNCTIONS.get(name)


def refuse_unfit(images: Tensor, name: AugmentName) -> None:
    """Refuse inputs that are not images, or not in the range that AugMix needs."""
    if images.dim() != 4:
        raise UserError(
            f"augment={name} is for images of shape (channels, height, width), not for inputs of "
            f"shape {tuple(images.shape[1:])}: give augment=none"
        )
    if name != "augmix":
        return
    if images.shape[1] not in (1, 3) or min(images.shape[2:]) < 2:
        raise UserError(
            f"augment=augmix is for grey or RGB images of 2 x 2 pixels or more, not of shape "
            f"{tuple(images.shape[1:])}: give another augment"
        )
    if images.is_floating_point() and images.isfinite().all():
        refuse_range(images)


def _flip(images: Tensor, generator: Generator, among: tuple[int, int] | None) -> Tensor:
    return flip(images, generator=generator, among=among)


def _crop_flip(images: Tensor, generator: Generator, among: tuple[int, int] | None) -> Tensor:
    return _flip(crop(images, generator=generator, among=among), generator, among)


def _augmix(images: Tensor, generator: Generator, among: tuple[int, int] | None) -> Tensor:
    return augmix(images, generator=generator, among=among)


FUNCTIONS: dict[str, Augment] = {"flip": _flip, "crop-flip": _crop_flip, "augmix": _augmix}
