"""Training data as users give them: folders of pictures, tensors, or a PyTorch dataset."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from classgrad.data.pictures import Source, read_class_folders
from classgrad.errors import UserError
from classgrad.learner.learnt import composed
from classgrad.tasks import Split

# What a user may give to learn from, and to predict.
Data = str | Path | Split | tuple[Any, Any] | Iterable[tuple[Any, Any]] | Dataset[Any]
Images = Tensor | Source | Sequence[Source]


def as_split(
    data: Data, classes: Sequence[str] | None, size: int, skip_bad: bool = False
) -> tuple[Split, tuple[str, ...]]:
    """Return images with labels that count from 0, and the names of the classes.

    A path is that of a folder with one folder of pictures per class. Labels are whole numbers, with
    `classes` for names, or names themselves. A dataset is anything that has (image, label) pairs.
    Names are composed.
    """
    classes = None if classes is None else [composed(name) for name in classes]
    if isinstance(data, str | Path):
        pictures = read_class_folders(Path(data), size, skip_bad)
        names = [composed(name) for name in pictures.class_names]
        # Sorted again: names in another form may have been in another order.
        order = sorted(range(len(names)), key=lambda number: names[number])
        numbers = torch.tensor(order).argsort()[pictures.labels]
        names = [names[number] for number in order]
        refuse_other_names(classes, names)
        return Split(pictures.images, numbers), tuple(names)
    if isinstance(data, Split):
        return data, class_names_of(data.labels, classes)
    if isinstance(data, tuple) and len(data) == 2:
        images, labels = data
    else:
        images, labels = stack_pairs(data)
    numbers, labelled = encode_labels(labels, classes)
    return Split(torch.as_tensor(images), numbers), labelled


def refuse_other_names(classes: Sequence[str] | None, folders: Sequence[str]) -> None:
    """Refuse names that are not those of the folders."""
    if classes is not None and list(classes) != list(folders):
        raise UserError(
            f"the classes are named by their folders, {', '.join(folders)}: leave out "
            f"'{', '.join(classes)}'"
        )


def stack_pairs(data: Any) -> tuple[Tensor, list[Any]]:
    """Return all images of a dataset as one tensor, and its labels."""
    images, labels = [], []
    try:
        sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        for image, label in (data[number] for number in range(len(data))) if sized else data:
            images.append(torch.as_tensor(image))
            labels.append(label.item() if isinstance(label, Tensor) else label)
    except (TypeError, ValueError):
        raise UserError(
            "training data of this type cannot be used: give a folder, (images, labels), or a "
            "dataset of (image, label) pairs whose images are tensors"
        ) from None
    if not images:
        raise UserError("the training data are empty: give at least one image of each class")
    if len({image.shape for image in images}) > 1:
        shapes = sorted({tuple(image.shape) for image in images})
        raise UserError(f"images have shapes {shapes[0]} and {shapes[-1]}: give all the same")
    return torch.stack(images), labels


def encode_labels(labels: Any, classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as numbers from 0, and the names of the classes."""
    sequence = labels if isinstance(labels, list | tuple) else None
    if sequence is not None and any(isinstance(label, str) for label in sequence):
        sequence = [composed(str(label)) for label in sequence]
        names = tuple(sorted(set(sequence))) if classes is None else tuple(classes)
        number_of = {name: number for number, name in enumerate(names)}
        for label in sequence:
            if label not in number_of:
                raise UserError(f"label '{label}' is not one of the classes {', '.join(names)}")
        return torch.tensor([number_of[label] for label in sequence]), names
    numbers = torch.as_tensor(labels)
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.dim() != 1:
        raise UserError(
            f"labels are {numbers.dtype} of shape {tuple(numbers.shape)}: give a whole number or a "
            "name for each image"
        )
    numbers = numbers.to(torch.int64)
    return numbers, class_names_of(numbers, classes)


def class_names_of(labels: Tensor, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names given for numbered classes, or the numbers as names."""
    if classes is not None:
        return tuple(classes)
    return tuple(str(number) for number in range(int(labels.max()) + 1 if len(labels) else 0))


def split_off_validation(
    split: Split, share: float, generator: torch.Generator
) -> tuple[Split, Split]:
    """Return training and validation data: a share of every class, leaving at least one image."""
    train_parts, valid_parts = [], []
    for label in split.labels.unique():
        of_class = (split.labels == label).nonzero().flatten()
        of_class = of_class[torch.randperm(len(of_class), generator=generator)]
        count = min(round(share * len(of_class)), len(of_class) - 1)
        valid_parts.append(of_class[:count])
        train_parts.append(of_class[count:])
    train, valid = torch.cat(train_parts).sort().values, torch.cat(valid_parts).sort().values
    return (
        Split(split.images[train], split.labels[train]),
        Split(split.images[valid], split.labels[valid]),
    )
