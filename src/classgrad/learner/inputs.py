"""What a user gives to learn from: folders of pictures, tensors, or a dataset of PyTorch's."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image as Picture
from torch import Tensor
from torch.utils.data import Dataset

from classgrad.data.pictures import read_class_folders
from classgrad.errors import UserError
from classgrad.tasks import Split

# What a user may give to learn from, and to ask about.
Data = str | Path | Split | tuple[Any, Any] | Iterable[tuple[Any, Any]] | Dataset[Any]
Images = Tensor | str | Path | Picture | Sequence[str | Path] | Sequence[Picture]


def as_split(
    data: Data, classes: Sequence[str] | None, size: int, skip_bad: bool = False
) -> tuple[Split, tuple[str, ...]]:
    """Return images with labels that count from 0, and the names of the classes.

    A path is a folder with a folder of pictures for each class. Labels are whole numbers, with
    `classes` for names, or names themselves. A dataset is anything that gives (image, label) pairs.
    """
    if isinstance(data, str | Path):
        found = read_class_folders(Path(data), size, skip_bad)
        refuse_other_names(classes, found.class_names)
        return Split(found.images, found.labels), tuple(found.class_names)
    if isinstance(data, Split):
        return data, class_names_of(data.labels, classes)
    if isinstance(data, tuple) and len(data) == 2:
        images, labels = data
    else:
        images, labels = stack_pairs(data)
    numbers, names = encode_labels(labels, classes)
    return Split(torch.as_tensor(images), numbers), names


def refuse_other_names(classes: Sequence[str] | None, found: Sequence[str]) -> None:
    """Refuse names that are not those of the folders."""
    if classes is not None and list(classes) != list(found):
        raise UserError(
            f"the classes are named by their folders, {', '.join(found)}: leave out "
            f"'{', '.join(classes)}'"
        )


def stack_pairs(data: Any) -> tuple[Tensor, list[Any]]:
    """Return all images and labels of a dataset."""
    images, labels = [], []
    try:
        sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        for image, label in (data[number] for number in range(len(data))) if sized else data:
            images.append(torch.as_tensor(image))
            labels.append(label.item() if isinstance(label, Tensor) else label)
    except (TypeError, ValueError):
        raise UserError(
            "the training data are not understood: give a folder, (images, labels), or a dataset "
            "of (image, label) pairs whose images are tensors"
        ) from None
    if not images:
        raise UserError("the training data are empty")
    if len({image.shape for image in images}) > 1:
        shapes = sorted({tuple(image.shape) for image in images})
        raise UserError(f"images have shapes {shapes[0]} and {shapes[-1]}: make them all alike")
    return torch.stack(images), labels


def encode_labels(labels: Any, classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as numbers from 0, and the names of the classes."""
    listed = labels if isinstance(labels, list | tuple) else None
    if listed is not None and any(isinstance(label, str) for label in listed):
        names = tuple(sorted(set(map(str, listed)))) if classes is None else tuple(classes)
        places = {name: number for number, name in enumerate(names)}
        for label in listed:
            if label not in places:
                raise UserError(f"label '{label}' is none of the classes {', '.join(names)}")
        return torch.tensor([places[label] for label in listed]), names
    numbers = torch.as_tensor(labels)
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.dim() != 1:
        raise UserError(
            f"labels are {numbers.dtype} of shape {tuple(numbers.shape)}: give a whole number or a "
            "name for each image"
        )
    numbers = numbers.to(torch.int64)
    return numbers, class_names_of(numbers, classes)


def class_names_of(labels: Tensor, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of classes that are numbers: those given, or the numbers."""
    if classes is not None:
        return tuple(classes)
    return tuple(str(number) for number in range(int(labels.max()) + 1 if len(labels) else 0))


def split_off_validation(
    split: Split, share: float, generator: torch.Generator
) -> tuple[Split, Split]:
    """Keep a share of every class apart for validation, all but one image at most."""
    kept, apart = [], []
    for label in split.labels.unique():
        own = (split.labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        count = min(round(share * len(own)), len(own) - 1)
        apart.append(own[:count])
        kept.append(own[count:])
    first, second = torch.cat(kept).sort().values, torch.cat(apart).sort().values
    return (
        Split(split.images[first], split.labels[first]),
        Split(split.images[second], split.labels[second]),
    )
