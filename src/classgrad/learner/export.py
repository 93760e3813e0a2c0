"""Export a learner to one file that predicts as the learner does, without classgrad.

    import json, torch
    about = {"classgrad.json": ""}
    model = torch.export.load("model.pt2", extra_files=about).module()
    names = json.loads(about["classgrad.json"])["classes"]
    print(names[model(images)["probabilities"][0].argmax()])

A file that ends in .pt2 is for PyTorch alone, one that ends in .onnx for onnxruntime and others.

Pictures are uint8 of shape (n, *input_shape) for any n, as `as_pictures` reads them; scaling and
normalisation are inside. Sentences are int64 (n, t), the numbers of their tokens, as `as_tokens`
makes them; the vocabulary is in the metadata. Other inputs are floats, as `predict` takes them. A
file refuses any other type and shape. The output is what `predict` says: the `probabilities`
(n, classes) of all classes, or of those of one task; and by class statistics the `p_values` (n) of
the hypothesis that an image is of a class that was learnt, which tell what is none of these.
Metadata in the file name the classes and say how inputs are read.

A file holds the weights that its classes need, and none that only other tasks use; but p-values
need the means of all classes. PyTorch does not promise that later versions can read a .pt2 file:
keep the learner's folder to export again.
"""

import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import PIL
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule
from torch.nn import functional

from classgrad import __version__
from classgrad.benchmarks.base import Normalise
from classgrad.data.sentences import as_text
from classgrad.errors import UserError, shown
from classgrad.files import write_atomic
from classgrad.learner.learner import STATISTICS, Learner
from classgrad.learner.learnt import LearntTask, numbered_classes
from classgrad.learner.sentences import SentenceInputs
from classgrad.networks.minilm import WORDS, GivenTokens, Tokens
from classgrad.networks.wordpiece import WordPieces
from classgrad.prediction.classifier import novelty

METADATA = "classgrad.json"  # name inside the file
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
LARGEST_ONNX = 2_000_000_000  # bytes of weights: the format has 2 GiB in one file
TOLERANCE = 1e-3  # of probabilities that onnxruntime computes
# How files of pictures become inputs, for those who read them without classgrad.
PREPROCESSING = {
    "reader": "classgrad.data.pictures.as_pictures(files, size)",
    "frame": "the first picture of an animation or of several pages",
    "jpeg": "decoded at 1/2, 1/4 or 1/8 if both edges are then at least 2 x size, as by Pillow's "
    "image.draft(None, (2 * size, 2 * size)); the smallest of these is used",
    "orientation": "rotated as EXIF says; a JPEG that was decoded at a smaller scale is rotated "
    "after it was resized, all others before",
    "colour": "RGB; grey becomes three equal channels, of 16 bits the upper 8 are kept, "
    "transparent parts become white, colour profiles are ignored",
    "pillow": PIL.__version__,
    "resize": "to size x size, whatever the proportions and without a crop, as by Pillow's "
    "image.resize((size, size), Image.Resampling.BILINEAR)",
}

# How sentences become inputs, for those who read them without classgrad.
TOKENISATION = {
    "reader": "classgrad.learner.export.as_tokens(sentences, about), where about is all of this",
    "tokeniser": "BERT's of this vocabulary (Devlin et al., 2019): small letters without accents, "
    "words and punctuation apart, of each word the longest pieces that the vocabulary has",
    "ends": "the first token is [CLS], the last [SEP]; what is beyond the most tokens is left out "
    "before it; then there are zeros",
}

Outputs = dict[str, Tensor]


def as_tokens(sentences: Sequence[str], about: Mapping[str, Any]) -> Tensor:
    """Return the input of an exported file (n, t) for sentences; `about` is its metadata."""
    known = about["preprocessing"]
    rows = SentenceInputs(known["bytes"]).read(list(sentences))
    pieces = WordPieces(known["vocabulary"])
    numbers = [torch.tensor(pieces.ids(text, known["most"])) for text in as_text(rows)]
    return nn.utils.rnn.pad_sequence(numbers, batch_first=True)


class Predictor(nn.Module):
    """Map images or tokens to what the learner predicts."""

    zero: Tensor

    def __init__(self, learner: Learner, floats: bool) -> None:
        super().__init__()
        self.net = copy.deepcopy(learner.net).cpu()  # for machines without the learner's device
        self.transform = learner.transform
        self.dtype = next(self.net.parameters()).dtype
        self.pictures = isinstance(self.transform, Normalise)
        tokens = next(self.net.trunk.children(), None)
        self.tokens = tokens if isinstance(tokens, Tokens) else None
        if isinstance(tokens, Tokens):
            self.net.trunk.tokens = GivenTokens(tokens)
        self.input_dtype = self.dtype if floats or not self.pictures else torch.uint8
        if self.tokens is not None:
            self.input_dtype = torch.int64
        self.keep("zero", torch.zeros(1, dtype=self.dtype))
        self.eval().requires_grad_(False)
        for weight in self.parameters():  # torch.export does not reliably save channels_last
            weight.data = weight.data.contiguous()

    def keep(self, name: str, value: Tensor) -> None:
        """Register a copy of a tensor, laid out as torch.export saves it."""
        self.register_buffer(name, value.cpu().clone(memory_format=torch.contiguous_format))

    def inputs(self, images: Tensor) -> Tensor:
        """Return inputs of the network; refuse images of another type or range."""
        torch.ops.aten._assert_tensor_metadata.default(images, dtype=self.input_dtype)
        if self.tokens is not None:
            some = (images != 0).any(1).all()
            torch._assert_async(some, "a sentence has no token")
            return images + (~some).long() * WORDS  # ONNX has no assertions, but it checks indices
        if self.input_dtype == torch.uint8:
            images = images.to(self.dtype) / 255
        elif self.pictures:
            inside = ((images >= 0) & (images <= 1)).all()
            torch._assert_async(inside, "images are floats outside of the range from 0 to 1")
            # ONNX has no assertions, but it checks indices: there is no zero[1].
            images = images + self.zero[(~inside).long()]
        return self.transform(images)


class TaskPredictor(Predictor):
    """Predict by the confidence of heads or by prototypes, with probabilities for each task."""

    def __init__(
        self, learner: Learner, tasks: Sequence[LearntTask], by: str, floats: bool
    ) -> None:
        super().__init__(learner, floats)
        self.numbers = [learner.tasks.index(task) for task in tasks]
        self.sharpness = [task.sharpness[by] for task in tasks]
        self.known = [
            [place for place, name in enumerate(task.class_names) if name not in task.forgotten]
            for task in tasks
        ]
        self.by_prototypes = by == "prototypes"
        for number in self.numbers if self.by_prototypes else []:
            self.keep(f"means_{number}", learner.prototypes[number])

    def forward(self, images: Tensor) -> Outputs:
        """Map (n, *input_shape) to probabilities (n, classes)."""
        parts = []
        embeddings = self.net.embed_each(self.inputs(images), self.numbers)
        for number, features, sharpness, known in zip(
            self.numbers, embeddings, self.sharpness, self.known, strict=True
        ):
            if self.by_prototypes:
                means = self.get_buffer(f"means_{number}")
                scores = functional.normalize(features, dim=1) @ means.T
            else:
                scores = self.net.classify(features, number)
            parts.append((scores[:, known].double() * sharpness).softmax(1))
        return {"probabilities": torch.cat(parts, 1).to(self.dtype)}


class StatisticsPredictor(Predictor):
    """Predict by class statistics, as `StatisticsClassifier.probabilities` does."""

    precision: Tensor
    weights: Tensor
    squares: Tensor
    log_priors: Tensor
    novelties: Tensor

    def __init__(self, learner: Learner, tasks: Sequence[LearntTask], floats: bool) -> None:
        super().__init__(learner, floats)
        assert learner.classifier is not None
        fitted = learner.classifier.fitted
        discriminant = fitted.discriminant
        present = discriminant.counts > 0  # not forgotten
        places = (present.cumsum(0) - 1).tolist()
        self.chosen = [places[number] for number in known_numbers(tasks)]
        self.sharpness = fitted.sharpness
        for name in ("weights", "squares", "log_priors"):
            self.keep(name, getattr(discriminant, name)[present])
        self.keep("precision", discriminant.precision)
        self.keep("novelties", fitted.novelties)

    def forward(self, images: Tensor) -> Outputs:
        """Map (n, *input_shape) to probabilities (n, classes) and p-values (n)."""
        features = self.net.embed(self.inputs(images), 0).float()
        x = functional.normalize(features, dim=1).double()
        own = (x @ self.precision * x).sum(1, keepdim=True)
        distances = own - 2 * (x @ self.weights.T) + self.squares
        logits = (self.log_priors - distances / 2)[:, self.chosen]
        # Counted, as ONNX has no searchsorted.
        as_novel = (self.novelties >= novelty(distances)[:, None]).sum(1)
        return {
            "probabilities": (logits * self.sharpness).softmax(1).to(self.dtype),
            "p_values": (1 + as_novel) / (1 + len(self.novelties)),
        }


def export(
    learner: Learner,
    path: Path | str,
    task: str | None = None,
    *,
    floats: bool = False,
    force: bool = False,
) -> None:
    """Write a learner to a file, which then predicts as `learner.predict(images, task)` does.

    With `floats` it takes pictures as floats from 0 to 1 instead of uint8. An existing file is
    replaced only with `force`.
    """
    path = Path(path)
    refuse_place(path, force)
    if floats and learner.kind.several == "sentences":
        raise UserError("a file for sentences takes the numbers of tokens: leave out floats")
    with learner.usage.reading():
        tasks = exported_tasks(learner, task)
        if path.suffix == ".onnx" and learner.net.precision is not None:
            precision = str(learner.net.precision).removeprefix("torch.")
            raise UserError(f"onnxruntime cannot compute in {precision}, as this learner: use .pt2")
        by = learner.default_way(task)
        predictor: Predictor  # which has a copy of the network
        if by == STATISTICS:
            predictor = StatisticsPredictor(learner, tasks, floats)
        else:
            predictor = TaskPredictor(learner, tasks, by, floats)
        about = metadata(learner, tasks, by, predictor)
    images = example_images(predictor, learner.input_shape)
    program = trace(predictor, images)
    drop_unused(program)
    about["sha256"] = digest(program, about)
    write = WRITERS[path.suffix]
    try:
        write_atomic(path, lambda part: write(part, program, about, images))
    except OSError as error:
        raise UserError(f"'{shown(path)}' cannot be written: {error.strerror}") from None


def refuse_place(path: Path, force: bool) -> None:
    """Refuse a path that a model cannot be written to."""
    if path.suffix not in WRITERS:
        suffixes = " or ".join(WRITERS)
        raise UserError(f"'{shown(path)}' does not end in {suffixes}: give a name that does")
    if path.is_dir():
        raise UserError(f"'{shown(path)}' is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"'{shown(path.parent)}' is not a folder: make it, or give another")
    if path.exists() and not force:
        raise UserError(
            f"'{shown(path)}' exists already: give another name, or force it", hint="force"
        )
    needed = ONNX_PACKAGES if path.suffix == ".onnx" else ()
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise UserError(
            f"ONNX needs packages that are not installed, {', '.join(missing)}: pip install "
            "'classgrad[onnx]'"
        )


def exported_tasks(learner: Learner, task: str | None) -> list[LearntTask]:
    """Return the tasks whose classes are to be exported, without those that are forgotten."""
    learner.net  # noqa: B018  # raises if nothing was learnt
    chosen = learner.tasks if task is None else [learner.tasks[learner.task_number(task)]]
    known = [learnt for learnt in chosen if len(learnt.forgotten) < len(learnt.class_names)]
    if not known:
        raise UserError(
            f"all classes of task '{chosen[0].name}' are forgotten: choose another task"
        )
    return known


def known_numbers(tasks: Sequence[LearntTask]) -> list[int]:
    """Return the numbers of classes in the statistics, each once, in the order they were learnt."""
    known = {number for task in tasks for number in task.known_numbers()}
    return [number for number in numbered_classes(tasks) if number in known]


def example_images(predictor: Predictor, input_shape: tuple[int, ...]) -> Tensor:
    """Return random images to trace a predictor with, and to compare a file with it."""
    # Two images, because torch.export treats a batch of one as a constant size.
    if predictor.tokens is not None:
        return torch.arange(1, 7).view(2, 3)
    images = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(1))
    scale = 255 if predictor.input_dtype == torch.uint8 else 1
    return (images * scale).to(predictor.input_dtype)


def trace(predictor: Predictor, images: Tensor) -> ExportedProgram:
    """Trace a predictor for any number of images, or of sentences of any number of tokens."""
    sizes = {0: Dim("n")}
    if predictor.tokens is not None:
        sizes[1] = Dim("t", min=2, max=predictor.tokens.most)
    with refusing_exceptions("PyTorch cannot export this network"), torch.no_grad():
        return torch.export.export(predictor, (images,), dynamic_shapes={"images": sizes})


@contextmanager
def refusing_exceptions(what: str) -> Iterator[None]:
    """Turn any error into one line: a trunk of the user's own can raise anything."""
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        reason = shown(" ".join(str(error).split()))
        raise UserError(f"{what}: {reason}") from None


def drop_unused(program: ExportedProgram) -> None:
    """Remove weights that the output does not depend on, which are those of other tasks.

    Remove the example inputs too, which PyTorch would pickle.
    """
    program.example_inputs = None
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


def metadata(
    learner: Learner, tasks: Sequence[LearntTask], by: str, predictor: Predictor
) -> dict[str, Any]:
    """Return what a user of an exported file needs to know."""
    names = [
        (name, task.name)
        for task in tasks
        for name in task.class_names
        if name not in task.forgotten
    ]
    outputs = ["probabilities"]
    if by == STATISTICS:
        by_number = numbered_classes(tasks)
        names = [by_number[number] for number in known_numbers(tasks)]
        outputs.append("p_values")
    shape, transform = list(learner.input_shape), predictor.transform
    normalisation = None
    if isinstance(transform, Normalise):
        mean, deviation = transform.mean.flatten().tolist(), transform.deviation.flatten().tolist()
        normalisation = {"mean": mean, "deviation": deviation}
    preprocessing: dict[str, Any] | None = None
    if predictor.tokens is not None:
        shape = [predictor.tokens.most]
        preprocessing = {
            "bytes": learner.size,
            "most": predictor.tokens.most,
            **TOKENISATION,
            "vocabulary": predictor.tokens.spelled(),
        }
    elif shape == [3, learner.size, learner.size]:
        preprocessing = {"size": learner.size, **PREPROCESSING}
    return {
        "classgrad": __version__,
        "task": tasks[0].name if len(tasks) == 1 else None,
        "tasks": [task for _, task in names],
        "classes": [name for name, _ in names],
        "by": by,
        "outputs": outputs,
        "input_shape": shape,
        "dtype": str(predictor.input_dtype).removeprefix("torch."),
        "normalisation": normalisation,  # of values from 0 to 1, inside
        "preprocessing": preprocessing,
    }


def digest(program: ExportedProgram, about: dict[str, Any]) -> str:
    """Return a hash of what a file says and computes with, in either format."""
    content = hashlib.sha256(json.dumps(about).encode())
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        content.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def write_torch(
    path: Path, program: ExportedProgram, about: dict[str, Any], images: Tensor
) -> None:
    """Write a file for torch.export.load, without paths of source files."""
    for module in program.graph_module.modules():  # one for each part in lower precision
        for node in module.graph.nodes if isinstance(module, GraphModule) else []:
            node.meta.pop("stack_trace", None)
    with open(path, "w+b") as file:
        torch.export.save(program, file, extra_files={METADATA: json.dumps(about, indent=1)})


def write_onnx(path: Path, program: ExportedProgram, about: dict[str, Any], images: Tensor) -> None:
    """Write a file for onnxruntime, and refuse one that does not say the same."""
    size = sum(value.nbytes for value in program.state_dict.values())
    if size > LARGEST_ONNX:
        raise UserError(f"{size:,} bytes of weights are too many for one ONNX file: use .pt2")
    with refusing_exceptions("PyTorch cannot export this network to ONNX"), quiet():
        convert(path, program, about)
    with refusing_exceptions("onnxruntime cannot run this network"):
        result = run_onnx(path, images)
    wanted = program.module()(images)["probabilities"]
    difference = float((result - wanted).abs().max())
    if not difference < TOLERANCE:
        raise UserError(
            f"onnxruntime computes probabilities of this network that differ by {difference:.2g}: "
            "use .pt2"
        )


def convert(path: Path, program: ExportedProgram, about: dict[str, Any]) -> None:
    """Write an ONNX file, without paths of source files."""
    written = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=[input_name(about)],
        output_names=about["outputs"],
        # Only names, as the program has it already.
        dynamic_shapes={"images": {0: "n"} | ({1: "t"} if about["dtype"] == "int64" else {})},
    )
    assert written is not None
    written.model.metadata_props[METADATA] = json.dumps(about)
    for node in written.model.graph.all_nodes():
        node.metadata_props.clear()
    written.save(path, external_data=False)


def run_onnx(path: Path, images: Tensor) -> Tensor:
    """Return the probabilities that a file computes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only, which it raises
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return torch.from_numpy(session.run(["probabilities"], {name: images.numpy()})[0])


def input_name(about: Mapping[str, Any]) -> str:
    """Return the name of the input of an ONNX file."""
    return "tokens" if about["dtype"] == "int64" else "images"


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings of PyTorch's exporter: about itself, and packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


Writer = Callable[[Path, ExportedProgram, dict[str, Any], Tensor], None]
WRITERS: dict[str, Writer] = {".pt2": write_torch, ".onnx": write_onnx}  # by suffix
