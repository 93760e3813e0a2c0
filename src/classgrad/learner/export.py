"""One task of a learner as a file that PyTorch alone can use: images in, probabilities out.

    import json, torch
    about = {"classgrad.json": ""}
    model = torch.export.load("model.pt2", extra_files=about).module()
    names = json.loads(about["classgrad.json"])["classes"]
    print(names[model(images)[0].argmax()])

Images are floats in [0, 1] of shape (n, *input_shape), as many as come; what comes out is (n,
classes), with a zero for each class that was forgotten. The file holds all that is needed for this
task, and what only other tasks use is left out. PyTorch does not promise that a later version reads
it: keep the state, and export again.
"""

import copy
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from classgrad import __version__
from classgrad.errors import UserError, shown
from classgrad.files import write_atomic
from classgrad.learner.learner import Learner
from classgrad.prediction.calibration import probabilities

SUFFIX = ".pt2"
ABOUT = "classgrad.json"  # in the file: what the numbers mean


class Predictor(nn.Module):
    """From images in [0, 1] to the probabilities of one task's classes."""

    def __init__(self, learner: Learner, number: int) -> None:
        super().__init__()
        about = learner.tasks[number]
        self.net = copy.deepcopy(learner.net).cpu()  # a file for any machine
        self.number, self.transform = number, learner.transform
        self.sharpness = about.sharpness["confidence"]
        self.classes = len(about.class_names)
        self.forgotten = [about.class_names.index(name) for name in about.forgotten]
        self.eval().requires_grad_(False)
        for weight in self.parameters():  # PyTorch cannot be relied on to write channels last
            weight.data = weight.data.contiguous()

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, *input_shape) to (n, classes)."""
        scores = self.net(self.transform(images), self.number)[:, : self.classes]
        return probabilities(scores, self.sharpness, self.forgotten).to(images.dtype)


def export(
    learner: Learner, path: Path | str, task: str | None = None, *, force: bool = False
) -> None:
    """Write one task of a learner to a file; the only one need not be named.

    A file that is there already is replaced with `force` alone.
    """
    path = Path(path)
    refuse_place(path, force)
    number = exported_task(learner, task)
    program = trace(Predictor(learner, number), learner.input_shape)
    drop_unused(program)
    about = json.dumps(metadata(learner, number), indent=1)

    def write(part: Path) -> None:
        with open(part, "w+b") as file:
            torch.export.save(program, file, extra_files={ABOUT: about})

    try:
        write_atomic(path, write)
    except OSError as error:
        raise UserError(f"'{shown(path)}' cannot be written: {error.strerror}") from None


def refuse_place(path: Path, force: bool) -> None:
    """Refuse a path that is no place for a model."""
    if path.suffix != SUFFIX:
        raise UserError(f"'{shown(path)}' does not end in {SUFFIX}: give a name that does")
    if path.is_dir():
        raise UserError(f"'{shown(path)}' is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"'{shown(path.parent)}' is not a folder: make it, or give another")
    if path.exists() and not force:
        raise UserError(
            f"'{shown(path)}' is there already: give another name, or force it", hint="force"
        )


def exported_task(learner: Learner, task: str | None) -> int:
    """Return the number of the task that is to be exported."""
    learner.net  # noqa: B018  # says so if nothing was learnt
    names = [learnt.name for learnt in learner.tasks]
    if task is None and len(names) > 1:
        raise UserError(f"this learner knows several tasks, {', '.join(names)}: say which")
    number = learner.task_number(names[0] if task is None else task)
    about = learner.tasks[number]
    if len(about.forgotten) == len(about.class_names):
        raise UserError(f"all classes of task '{about.name}' are forgotten: nothing is left of it")
    return number


def trace(predictor: Predictor, input_shape: tuple[int, ...]) -> ExportedProgram:
    """Return what a predictor computes, for any number of images."""
    # Two, because PyTorch takes a single image for a size that never changes.
    images = torch.zeros(2, *input_shape, dtype=next(predictor.parameters()).dtype)
    try:
        with torch.no_grad():
            return torch.export.export(
                predictor, (images,), dynamic_shapes={"images": {0: Dim("n")}}
            )
    except Exception as error:  # whatever a trunk of the user's own does
        reason = shown(" ".join(str(error).split()))
        raise UserError(f"PyTorch cannot export this network: {reason}") from None


def drop_unused(program: ExportedProgram) -> None:
    """Take out the weights that no result depends on, which are those of other tasks.

    So go the inputs it was traced with, which PyTorch would pickle, and the paths of sources.
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


def metadata(learner: Learner, number: int) -> dict[str, object]:
    """Return what has to be known to use an exported task."""
    about = learner.tasks[number]
    return {
        "classgrad": __version__,
        "task": about.name,
        "classes": about.class_names,
        "forgotten": about.forgotten,
        "input_shape": list(learner.input_shape),
        "dtype": str(next(learner.net.parameters()).dtype).removeprefix("torch."),
    }
