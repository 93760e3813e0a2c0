"""Decoded images with their labels, and the checksum of their content."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one split, in the order of the files.

    `images` is uint8 (N, C, H, W); `labels` is int64 (N,) and indexes `class_names`; `coarse` does
    the same for `coarse_names` where the dataset has superclasses. `status` is "complete", "subset"
    or "other", and `note` says how this copy compares with the release.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    coarse: Tensor | None = None
    coarse_names: tuple[str, ...] = ()
    status: str = "other"
    note: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def complete(self) -> bool:
        """Tell whether count and content are those of the release."""
        return self.status == "complete"

    @property
    def per_class(self) -> tuple[int, ...]:
        """Count the images of each class."""
        return tuple(torch.bincount(self.labels, minlength=len(self.class_names)).tolist())


class Content(NamedTuple):
    """The sha256 of decoded images and of their labels."""

    images: str
    labels: str


def checksums(images: Images) -> Content:
    """Return the checksums by which a repacked copy is recognised as the same data."""
    labels = hashlib.sha256(images.labels.numpy().astype(np.uint8).tobytes())
    if images.coarse is not None:
        labels.update(images.coarse.numpy().astype(np.uint8).tobytes())
    pixels = hashlib.sha256(np.ascontiguousarray(images.images.numpy()).data)
    return Content(pixels.hexdigest(), labels.hexdigest())
