"""Drift: how far later tasks have moved the outputs for an earlier one.

    reference = learner.reference(images, "birds")  # after "birds", before the next task
    learner.learn("fish", ...)
    print(leakage(learner, reference))

Any images will do, and need no labels. A reference belongs to the user: a learner keeps no images,
so a reference is not part of its state, and is saved and loaded separately.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.errors import UserError, shown
from classgrad.files import write_atomic
from classgrad.learner.inputs import Images, InputKind
from classgrad.learner.learnt import LearntTask, composed
from classgrad.learner.usage import Usage
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import BATCH

NAME = "classgrad-reference"  # of the metadata in a file
IDENTITY = ("class_names", "sharpness", "data")  # images that are added later change none of it


class LearnerLike(Protocol):
    """The part of a learner that drift is measured with."""

    kind: InputKind
    input_shape: tuple[int, ...]
    usage: Usage

    @property
    def tasks(self) -> Sequence[LearntTask]:
        """The tasks learnt so far."""

    @property
    def net(self) -> Network:
        """The network with the heads of all tasks."""

    def task_number(self, task: str) -> int:
        """Return the number of a task."""

    def inputs(self, images: Tensor) -> Tensor:
        """Return inputs of the network for images."""

    def task_outputs(self, x: Tensor, number: int) -> Tensor:
        """Return a score of each class of a task."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Outputs of a learner for some images of a task, recorded at one time.

    It holds the images as they were given, so protect it as you protect them. `identity` describes
    the task when it was learnt; `leakage` uses it to refuse a reference of another learner.
    """

    images: Tensor  # (n, *input_shape)
    logits: Tensor  # (n, classes)
    task: str
    identity: dict[str, Any]

    def save(self, path: Path | str) -> None:
        """Write images and logits to one safetensors file; replace an existing one."""
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"'{shown(path)}' cannot be written: give a file in an existing folder")
        tensors = {"images": self.images.contiguous(), "logits": self.logits.contiguous()}
        about = {NAME: json.dumps({"task": self.task, "identity": self.identity})}
        write_atomic(path, lambda part: safetensors.torch.save_file(tensors, part, about))

    @classmethod
    def load(cls, path: Path | str) -> "Reference":
        """Read a reference from a file."""
        if not Path(path).is_file():
            raise UserError(f"no reference at '{shown(path)}': give the file it was saved in")
        try:
            with safe_open(path, "pt") as file:
                about = (file.metadata() or {}).get(NAME)
                # Cloned, as safetensors may map tensors to the file, which can change.
                images, logits = (file.get_tensor(name).clone() for name in ("images", "logits"))
        except Exception as error:  # safetensors does not document which errors it raises
            reason = shown(" ".join(f"{type(error).__name__} {error}".split()))
            raise UserError(f"'{shown(path)}' is not a reference: {reason}") from None
        if about is None:
            raise UserError(f"'{shown(path)}' is not a reference: it names no task")
        with raising_bad_checkpoint(f"the reference in '{shown(path)}'"):
            reference = cls(images, logits, **json.loads(about))
            reference.refuse_misshapen()
        return reference

    def refuse_misshapen(self) -> None:
        """Refuse logits that cannot be outputs for these images."""
        classes = self.identity["class_names"]
        if not isinstance(self.task, str) or not isinstance(classes, list):
            raise TypeError("its task or classes are not names")
        if self.logits.shape != (len(self.images), len(classes)) or not len(self.images):
            raise ValueError(f"{len(self.images)} images, logits {tuple(self.logits.shape)}")
        if not self.logits.is_floating_point():
            raise TypeError(f"logits of {self.logits.dtype}")


@dataclass(frozen=True)
class Leakage:
    """How far a learner's outputs for the images of a reference have moved.

    The change of an image's logits is ‖now - then‖ / ‖then‖, over classes that are not forgotten.
    """

    task: str
    mean: float  # change, over the images
    largest: float  # change of any image
    changed: int  # predictions that changed, with the task known
    images: int

    def __str__(self) -> str:
        return (
            f"task '{self.task}': logits changed by {self.mean:.1e} of their norm on average, "
            f"{self.largest:.1e} at most; {self.changed} of {self.images} predictions changed"
        )


def take_reference(learner: LearnerLike, images: Images, task: str) -> Reference:
    """Return the current outputs of a learner for images of a task, as `Learner.predict` takes."""
    number = learner.task_number(task)
    batch = learner.kind.read(images)
    batch = batch[None] if tuple(batch.shape) == learner.input_shape else batch
    if not batch.numel():
        raise UserError(f"a reference needs {learner.kind.several}: give at least one")
    return Reference(
        batch.detach().cpu().clone(),
        task_logits(learner, batch, number),
        task,
        identity(learner, number),
    )


def leakage(learner: LearnerLike, reference: Reference) -> Leakage:
    """Return how far a learner's outputs have moved since a reference was taken."""
    with learner.usage.reading():
        return measured_leakage(learner, reference)


def measured_leakage(learner: LearnerLike, reference: Reference) -> Leakage:
    """Return how far outputs have moved, of a learner that nobody changes meanwhile."""
    number = learner.task_number(reference.task)
    names = [composed(name) for name in reference.identity["class_names"]]
    known = identity(learner, number)
    known["class_names"] = known["class_names"][: len(names)]  # classes can be added to a task
    wanted = {name: reference.identity.get(name) for name in IDENTITY} | {"class_names": names}
    if not known["data"]:  # the digest goes with the first class that is forgotten
        wanted["data"] = known["data"]
    if known != wanted:
        raise UserError(
            f"this reference is of another learner: task '{reference.task}' of this learner was "
            "learnt at another time or from other data; take a new reference"
        )
    learnt = learner.tasks[number]
    kept = [i for i, name in enumerate(names) if name not in learnt.forgotten]
    if not kept:
        raise UserError(
            f"all classes of task '{learnt.name}' in this reference are forgotten: choose another"
        )
    then = reference.logits[:, kept].double()
    now = task_logits(learner, reference.images, number)[:, kept].double()
    moved = (now - then).norm(dim=1)
    change = torch.where(moved == 0, 0.0, moved / then.norm(dim=1))  # 0 / 0 means no change
    return Leakage(
        task=reference.task,
        mean=float(change.mean()),
        largest=float(change.max()),
        changed=int((now.argmax(1) != then.argmax(1)).sum()),
        images=len(then),
    )


@torch.no_grad()
def task_logits(learner: LearnerLike, images: Tensor, number: int) -> Tensor:
    """Return the logits of a task's classes for images."""
    learner.net.eval()
    batches = learner.inputs(images).split(BATCH)
    logits = torch.cat([learner.task_outputs(x, number) for x in batches])
    return logits[:, : len(learner.tasks[number].class_names)].cpu()


def identity(learner: LearnerLike, number: int) -> dict[str, Any]:
    """Return what identifies a task of this learner; classes may be added to it at the end."""
    learnt = asdict(learner.tasks[number])
    return {name: learnt[name] for name in IDENTITY}
