"""Training data as users give them: folders and files, tensors, or a PyTorch dataset."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.utils.data import Dataset

from classgrad.benchmarks.base import Normalise
from classgrad.data.lookalikes import Scenes
from classgrad.data.pictures import Source
from classgrad.errors import UserError, shown
from classgrad.learner.learnt import composed
from classgrad.methods.base import Method
from classgrad.settings import Settings
from classgrad.tasks import Split, Task
from classgrad.training.config import Training

# What a user may give to learn from, and to predict.
Data = str | Path | Split | tuple[Any, Any] | Iterable[tuple[Any, Any]] | Dataset[Any]
Images = Tensor | Source | Sequence[Source]
Positive = Annotated[float, Field(gt=0)]
ReadProgress = Callable[[int, int], object]  # is told how many are done, and of how many

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


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs that were read from a folder or a file, with the names of their classes."""

    inputs: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    files: list[Path]  # of each input, if it has one of its own
    skipped: list[tuple[str, str]]  # what was left out, as messages name it, and why


class InputKind(ABC):
    """What a learner's inputs are: how they are read, and what they are called in messages.

    `size` says how large each of them becomes.
    """

    usual_size: ClassVar[int]
    several: ClassVar[str]  # what they are called, and the name of this kind
    source: ClassVar[str]  # what one of them is read from
    training: ClassVar[Training | None] = None  # of layers that learn, if not that of any learner
    # Settings of methods that are given by their name or not at all.
    method_settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, size: int) -> None:
        self.size = size

    @staticmethod
    @abstractmethod
    def size_text(size: int) -> str:
        """Return how large inputs are, in words."""

    @property
    def one(self) -> str:
        """What one of them is called."""
        return self.several[:-1]

    @abstractmethod
    def read_classes(
        self, path: Path, skip_bad: bool = False, progress: ReadProgress | None = None
    ) -> Labelled:
        """Read training data; what cannot be read is refused, or with `skip_bad` left out."""

    @abstractmethod
    def stack(self, given: Any) -> Tensor:
        """Return training data that are not in files as one tensor."""

    @abstractmethod
    def read(self, given: Any) -> Tensor:
        """Return what `predict` takes as one tensor; refuse what cannot be read."""

    @abstractmethod
    def attempt(
        self, given: Sequence[Any], progress: ReadProgress | None = None
    ) -> tuple[Tensor, list[Any], dict[int, str]]:
        """Read what can be read.

        Return that, what each was read from, whether it could be or not, and by its place among
        these the reason for each that cannot be read.
        """

    @abstractmethod
    def names(self, sources: Sequence[Any]) -> list[str]:
        """Return what inputs from these sources are called in messages."""

    @abstractmethod
    def none_readable(self, sources: Sequence[Any], bad: Mapping[int, str]) -> UserError:
        """Return the error for inputs of which none can be read."""

    @abstractmethod
    def scenes(self, parts: Sequence[Split], names: Sequence[str]) -> Scenes:
        """Return which inputs of classes with these names count as one, counted through."""

    def read_all(self, given: Sequence[Any], skip_bad: bool = False) -> tuple[Tensor, list[Any]]:
        """Return what can be read, and from what each was; refuse the rest, or leave it out."""
        if not skip_bad:
            self.read(given)
        inputs, sources, bad = self.attempt(given)
        if not len(inputs):
            raise self.none_readable(sources, bad)
        return inputs, [source for place, source in enumerate(sources) if place not in bad]

    def refuse_method(self, method: Method) -> None:  # noqa: B027  # most can
        """Refuse a method that cannot learn from such inputs."""

    def refuse_shape(self, shape: Sequence[int]) -> None:  # noqa: B027  # some take any
        """Refuse inputs of another kind."""

    def remark(self, inputs: Tensor) -> str:
        """Return what a user should know about inputs that were read, if anything."""
        return ""

    def called(self, row: Tensor) -> str:
        """Return what one input is called."""
        return f"the same {self.one}"


def as_split(
    data: Data, classes: Sequence[str] | None, kind: InputKind, skip_bad: bool = False
) -> tuple[Split, tuple[str, ...], list[Path]]:
    """Return inputs with labels that count from 0, the names of the classes, and the files if any.

    A path is that of what `kind` reads classes from. Labels are whole numbers, with `classes` for
    names, or names themselves. A dataset is anything that has (input, label) pairs. Names are
    composed.
    """
    classes = None if classes is None else [composed(name) for name in classes]
    if isinstance(data, str | Path):
        found = kind.read_classes(Path(data), skip_bad)
        names = [composed(name) for name in found.class_names]
        # Sorted again: names in another form may have been in another order.
        order = sorted(range(len(names)), key=lambda number: names[number])
        numbers = torch.tensor(order).argsort()[found.labels]
        names = [names[number] for number in order]
        refuse_other_names(classes, names)
        return Split(found.inputs, numbers), tuple(names), found.files
    if isinstance(data, Split):
        kind.refuse_shape(data.images.shape[1:])
        return data, class_names_of(data.labels, classes), []
    if isinstance(data, tuple) and len(data) == 2:
        inputs, labels = data
    else:
        inputs, labels = pairs_of(data, kind)
    numbers, labelled = encode_labels(labels, classes)
    stacked = kind.stack(inputs)
    kind.refuse_shape(stacked.shape[1:])
    return Split(stacked, numbers), labelled, []


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
            f"the classes are named where they are read, {', '.join(folders)}: leave out "
            f"'{', '.join(classes)}'"
        )


def pairs_of(data: Any, kind: InputKind) -> tuple[list[Any], list[Any]]:
    """Return all inputs of a dataset, and its labels."""
    inputs, labels = [], []
    try:
        sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        for one, label in (data[number] for number in range(len(data))) if sized else data:
            inputs.append(one)
            labels.append(label.item() if isinstance(label, Tensor) else label)
    except (TypeError, ValueError):
        raise unusable(kind) from None
    if not inputs:
        raise no_data(kind)
    return inputs, labels


def no_data(kind: InputKind) -> UserError:
    """Return the error for training data without a single input."""
    return UserError(f"the training data are empty: give at least one {kind.one} of each class")


def in_two_classes(what: str, one: str, other: str) -> UserError:
    """Return the error for an input that is in two classes."""
    return UserError(f"{what} is in class '{one}' and in class '{other}': remove it from one")


def unusable(kind: InputKind) -> UserError:
    """Return the error for training data that are nothing that can be learnt."""
    return UserError(
        f"training data of this type cannot be used: give a path, ({kind.several}, labels), or a "
        f"dataset of ({kind.one}, label) pairs"
    )


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
    try:
        numbers = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"labels of type {type(labels).__name__} cannot be used: give a list with a whole "
            "number or a name for each image"
        ) from None
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
