"""Training data as users give them: folders of pictures, tensors, or a PyTorch dataset."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.utils.data import Dataset

from classgrad.benchmarks.base import Normalise
from classgrad.data.lookalikes import Scenes
from classgrad.data.pictures import Pictures, Source, picture_files, read_class_folders
from classgrad.errors import UserError, shown
from classgrad.learner.learnt import composed
from classgrad.settings import Settings
from classgrad.tasks import Split, Task

# What a user may give to learn from, and to predict.
Data = str | Path | Split | tuple[Any, Any] | Iterable[tuple[Any, Any]] | Dataset[Any]
Images = Tensor | Source | Sequence[Source]
Positive = Annotated[float, Field(gt=0)]

# Midway between black and white, and a typical standard deviation of photographs. Learners that
# were given none do not have them in their states, so they stay.
MEAN, DEVIATION = 0.5, 0.25
MEASURED = 5  # images of a class of which at least one is set aside for validation
NAMED = 3  # pairs of images that a message names


def as_values(given: Any) -> Any:
    """Return a tuple or list as it is, and anything else as the only value of one."""
    return given if isinstance(given, tuple | list) else (given,)


class OwnTrunk(Settings):
    """What a trunk of the user's own takes: pictures less a mean, divided by a deviation."""

    mean: Annotated[tuple[float, ...], BeforeValidator(as_values)] = Field(
        default=(MEAN,), description="mean of pictures' values from 0 to 1, of all channels or each"
    )
    deviation: Annotated[tuple[Positive, ...], BeforeValidator(as_values)] = Field(
        default=(DEVIATION,), description="deviation of these values, of all channels or each"
    )

    def normalise(self, shape: Sequence[int]) -> Normalise:
        """Return the normalisation of pictures of a shape; refuse another number of channels."""

        def each(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
            if len(values) not in (1, shape[0]):
                raise UserError(
                    f"the {name} has {len(values)} values, but images have shape {tuple(shape)}: "
                    "give one value, or one for each channel"
                )
            return values if len(values) == shape[0] else values * shape[0]

        return Normalise(each("mean", self.mean), each("deviation", self.deviation))


@dataclass(frozen=True)
class GivenTask(Task):
    """A task as `learn` is given it: with the scenes of its images (see `data.lookalikes`)."""

    scenes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # valid last
    across: str = ""  # which images of different classes look alike, in one line

    @property
    def trained_scenes(self) -> Tensor:
        """The scene of each training image."""
        return self.scenes[: len(self.train)]

    def measured(self) -> Split:
        """Return one validation image of each scene of which no image is for training."""
        trained = set(self.trained_scenes.tolist())
        rows: dict[int, int] = {}
        for row, scene in enumerate(self.scenes[len(self.train) :].tolist()):
            if scene not in trained:
                rows.setdefault(scene, row)
        if len(rows) == len(self.valid):
            return self.valid
        index = torch.tensor(
            list(rows.values()), dtype=torch.int64, device=self.valid.labels.device
        )
        return Split(self.valid.images[index], self.valid.labels[index])


def as_split(
    data: Data, classes: Sequence[str] | None, size: int, skip_bad: bool = False
) -> tuple[Split, tuple[str, ...], list[Path]]:
    """Return images with labels that count from 0, the names of the classes, and the files if any.

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
        return Split(pictures.images, numbers), tuple(names), class_files(Path(data), pictures)
    if isinstance(data, Split):
        return data, class_names_of(data.labels, classes), []
    if isinstance(data, tuple) and len(data) == 2:
        images, labels = data
    else:
        images, labels = stack_pairs(data)
    numbers, labelled = encode_labels(labels, classes)
    return Split(torch.as_tensor(images), numbers), labelled, []


def class_files(path: Path, pictures: Pictures) -> list[Path]:
    """Return the files that pictures were read from, in their order."""
    skipped, root = {file for file, _ in pictures.skipped}, Path(os.path.expanduser(path))
    files = [file for name in pictures.class_names for file in picture_files(root / name)]
    return [file for file in files if file not in skipped]


def across_text(
    scenes: Scenes, labels: Tensor, names: Sequence[str], files: Sequence[Path], trained: int
) -> str:
    """Return which images of different classes look alike, in one line; empty if none do.

    They are named by their files, which may be unknown for the last ones, or by their numbers: the
    first ones are for training, the others for validation.
    """

    def called(number: int) -> str:
        if number < len(files):
            return f"'{shown(files[number])}'"
        kind, first, count = "image", 0, trained
        if number >= trained:
            kind, first, count = "validation image", trained, len(labels) - trained
        return f"{kind} {number - first + 1} of {count} ('{names[int(labels[number])]}')"

    if not scenes.across:
        return ""
    pairs = [f"{called(one)} and {called(two)}" for one, two in scenes.across[:NAMED]]
    more = ", among others" if scenes.pictures_across > 2 * len(pairs) else ""
    return (
        f"{scenes.pictures_across:,} images look like one of another class: {', '.join(pairs)}"
        f"{more}; is each in the right class?"
    )


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


def count_scenes(labels: Tensor, scenes: Tensor, classes: int) -> list[int]:
    """Return how many scenes the images of each class show."""
    return [len(scenes[labels == label].unique()) for label in range(classes)]


def split_off_validation(
    labels: Tensor, share: float, generator: torch.Generator, scenes: Tensor | None = None
) -> Tensor:
    """Return which images are for validation: a share of every class, leaving at least one image.

    Images of one scene stay together. Of a class of five images and two scenes at least one scene
    is for validation, unless the share is 0. Without `scenes` it is as in versions that knew none.
    """
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        of_class = (labels == label).nonzero().flatten()
        of_class = of_class[torch.randperm(len(of_class), generator=generator)]
        count = min(round(share * len(of_class)), len(of_class) - 1)
        if scenes is not None:
            least = 1 if share > 0 and len(of_class) >= MEASURED else 0
            of_class = whole_scenes(of_class, scenes, max(count, least))
            count = len(of_class)
        chosen[of_class[:count]] = True
    return chosen


def whole_scenes(images: Tensor, scenes: Tensor, count: int) -> Tensor:
    """Return the first of these images that make up `count` in whole scenes.

    Scenes that are too large are passed over. If all are, it is the smallest one, but never all.
    """
    by_scene: dict[int, list[int]] = {}
    for image, scene in zip(images.tolist(), scenes[images].tolist(), strict=True):
        by_scene.setdefault(scene, []).append(image)
    chosen: list[int] = []
    for of_scene in by_scene.values():
        if len(chosen) + len(of_scene) <= count:
            chosen += of_scene
    if count and not chosen and len(by_scene) > 1:
        chosen = min(by_scene.values(), key=len)
    return torch.tensor(chosen, dtype=torch.int64)
