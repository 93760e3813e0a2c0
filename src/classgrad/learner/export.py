"""Export a learner to a file that PyTorch alone can run: images to probabilities.

    import json, torch
    about = {"classgrad.json": ""}
    model = torch.export.load("model.pt2", extra_files=about).module()
    names = json.loads(about["classgrad.json"])["classes"]
    print(names[model(images)[0].argmax()])

Images are floats in [0, 1] of shape (n, *input_shape) for any n; the output is (n, classes), with
zeros for forgotten classes: the probabilities that `predict` gives, of all classes if they are told
apart by class statistics and no task is chosen, else of the classes of one task. The file holds all
weights that this task needs, and none that only other tasks use. PyTorch does not promise that
later versions can read it: keep the learner's folder to export again.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn import functional

from classgrad import __version__
from classgrad.errors import UserError, shown
from classgrad.files import write_atomic
from classgrad.learner.learner import Learner
from classgrad.learner.learnt import LearntTask, numbered_classes
from classgrad.prediction.calibration import probabilities

SUFFIX = ".pt2"
METADATA = "classgrad.json"  # name inside the file


class Predictor(nn.Module):
    """Map images in [0, 1] to the probabilities of classes."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.net = copy.deepcopy(learner.net).cpu()  # for machines without the learner's device
        self.transform = learner.transform
        self.eval().requires_grad_(False)
        for weight in self.parameters():  # torch.export does not reliably save channels_last
            weight.data = weight.data.contiguous()


class HeadPredictor(Predictor):
    """Predict by the confidence of a task's head."""

    def __init__(self, learner: Learner, number: int) -> None:
        super().__init__(learner)
        task = learner.tasks[number]
        self.number, self.sharpness = number, task.sharpness["confidence"]
        self.classes = len(task.class_names)
        self.forgotten = [task.class_names.index(name) for name in task.forgotten]

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, *input_shape) to (n, classes)."""
        scores = self.net(self.transform(images), self.number)[:, : self.classes]
        return probabilities(scores, self.sharpness, self.forgotten).to(images.dtype)


class StatisticsPredictor(Predictor):
    """Predict by class statistics."""

    weights: Tensor
    offsets: Tensor

    def __init__(self, learner: Learner, tasks: Sequence[LearntTask]) -> None:
        super().__init__(learner)
        assert learner.classifier is not None
        fitted = learner.classifier.fitted
        numbers = list(numbered_classes(tasks))
        discriminant = fitted.discriminant
        offsets = discriminant.log_priors - discriminant.squares / 2
        self.register_buffer("weights", fitted.sharpness * discriminant.weights[numbers])
        self.register_buffer("offsets", fitted.sharpness * offsets[numbers])

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, *input_shape) to (n, classes)."""
        features = functional.normalize(self.net.embed(self.transform(images), 0), dim=1)
        scores = features.double() @ self.weights.T + self.offsets
        return scores.softmax(1).to(images.dtype)


def export(
    learner: Learner, path: Path | str, task: str | None = None, *, force: bool = False
) -> None:
    """Write a learner to a file.

    `task` may be left out if there is only one, or if all classes are told apart by statistics. An
    existing file is replaced only with `force`.
    """
    path = Path(path)
    refuse_place(path, force)
    tasks = exported_tasks(learner, task)
    predictor: Predictor
    if learner.classifier is not None:
        predictor = StatisticsPredictor(learner, tasks)
    else:
        predictor = HeadPredictor(learner, learner.tasks.index(tasks[0]))
    program = trace(predictor, learner.input_shape)
    drop_unused(program)
    about = json.dumps(metadata(learner, tasks), indent=1)

    def write(part: Path) -> None:
        with open(part, "w+b") as file:
            torch.export.save(program, file, extra_files={METADATA: about})

    try:
        write_atomic(path, write)
    except OSError as error:
        raise UserError(f"'{shown(path)}' cannot be written: {error.strerror}") from None


def refuse_place(path: Path, force: bool) -> None:
    """Refuse a path that a model cannot be written to."""
    if path.suffix != SUFFIX:
        raise UserError(f"'{shown(path)}' does not end in {SUFFIX}: give a name that does")
    if path.is_dir():
        raise UserError(f"'{shown(path)}' is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"'{shown(path.parent)}' is not a folder: make it, or give another")
    if path.exists() and not force:
        raise UserError(
            f"'{shown(path)}' exists already: give another name, or force it", hint="force"
        )


def exported_tasks(learner: Learner, task: str | None) -> list[LearntTask]:
    """Return the tasks whose classes are to be exported."""
    learner.net  # noqa: B018  # raises if nothing was learnt
    names = [learnt.name for learnt in learner.tasks]
    if task is not None:
        chosen = [learner.tasks[learner.task_number(task)]]
    elif len(names) > 1 and learner.classifier is None:
        raise UserError(f"this learner knows several tasks, {', '.join(names)}: choose one")
    else:
        chosen = learner.tasks
    if all(len(learnt.forgotten) == len(learnt.class_names) for learnt in chosen):
        raise UserError(
            f"all classes of task '{chosen[0].name}' are forgotten: choose another task"
        )
    return chosen


def trace(predictor: Predictor, input_shape: tuple[int, ...]) -> ExportedProgram:
    """Trace a predictor for any number of images."""
    # Two images, because torch.export treats a batch of one as a constant size.
    images = torch.zeros(2, *input_shape, dtype=next(predictor.parameters()).dtype)
    try:
        with torch.no_grad():
            return torch.export.export(
                predictor, (images,), dynamic_shapes={"images": {0: Dim("n")}}
            )
    except Exception as error:  # a trunk of the user's own can raise anything
        reason = shown(" ".join(str(error).split()))
        raise UserError(f"PyTorch cannot export this network: {reason}") from None


def drop_unused(program: ExportedProgram) -> None:
    """Remove weights that the output does not depend on, which are those of other tasks.

    Remove the example inputs too, which PyTorch would pickle, and paths of source files.
    """
    program.example_inputs = None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    signature, kept = program.graph_signature, []
    inputs = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(signature.input_specs, inputs, strict=True):
        if node.users or spec.kind == InputKind.USER_INPUT:
            kept.append(spec)
        else:
            program.graph.erase_node(node)
            assert spec.target is not None
            program.state_dict.pop(spec.target, None)
            program.constants.pop(spec.target, None)
    signature.input_specs[:] = kept
    program.graph_module.recompile()


def metadata(learner: Learner, tasks: Sequence[LearntTask]) -> dict[str, object]:
    """Return what a user of an exported file needs to know."""
    names = [(name, tasks[0].name) for name in tasks[0].class_names]
    if learner.classifier is not None:
        names = list(numbered_classes(tasks).values())
    return {
        "classgrad": __version__,
        "task": tasks[0].name if len(tasks) == 1 else None,
        "tasks": [task for _, task in names],
        "classes": [name for name, _ in names],
        "forgotten": sorted({name for task in tasks for name in task.forgotten}),
        "input_shape": list(learner.input_shape),
        "dtype": str(next(learner.net.parameters()).dtype).removeprefix("torch."),
    }
