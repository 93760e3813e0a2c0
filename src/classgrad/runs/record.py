"""The record of a run: one JSON file with every setting and all results; means over records."""

import json
import math
import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from classgrad.errors import UserError, shown
from classgrad.files import write_text

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation of a figure over seeds; no deviation for a single seed."""

    mean: float
    std: float | None = None

    def text(self, signed: bool = False, digits: int = 1) -> str:
        """Return it as text.

        >>> MeanStd(93.456, 0.51).text(), MeanStd(-0.04).text(signed=True)
        ('93.5 ± 0.5', '+0.0')
        """
        # Adding 0 turns a rounded -0 into 0.
        mean = round(self.mean, digits) + 0.0
        shown = f"{mean:{'+' if signed else ''}.{digits}f}".replace("-", "−")
        return shown if self.std is None else f"{shown} ± {self.std:.{digits}f}"


def mean_std(values: Iterable[float | None]) -> MeanStd | None:
    """Return mean and standard deviation, or None if a value is missing.

    >>> mean_std([1.0, 3.0, 5.0])
    MeanStd(mean=3.0, std=2.0)
    >>> mean_std([1.0, None]), mean_std([])
    (None, None)
    """
    values = list(values)
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return MeanStd(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


# 1: the first. 2: has the version of the defaults that the run was made with.
SCHEMA_VERSION = 2
FILE_NAME = "record.json"

Count = Annotated[int, Field(ge=0, lt=2**63)]
Matrix = list[list[float | None]]


class Part(BaseModel):
    """Base of all parts of a record. No extra fields, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Layer(Part):
    """Rank of one layer's protected subspace after each task, of `dimension` at most.

    Where similar classes share directions, `groups` has the group of each class, in the order they
    were learnt, and `cosines` its cosine with the class that decided this, 1 for the first of a
    group. Where a task selects units, `units` has how many each task uses, and `switched` how many
    of them all its training has switched on or off.
    """

    name: str
    dimension: Annotated[Count, Field(ge=1)]
    ranks: list[Count] = Field(default_factory=list)
    groups: list[Count] = Field(default_factory=list)
    cosines: list[float] = Field(default_factory=list)
    units: list[Count] = Field(default_factory=list)
    switched: list[Count] = Field(default_factory=list)


class ClassResult(Part):
    """Accuracy of the classes of one task, in per cent: when learnt, and at the end."""

    task: str
    classes: list[str]
    learnt: list[float | None]
    final: list[float | None]
    forgetting: list[float | None]


class Curve(Part):
    """How long a task was trained, and the mean training loss of each epoch.

    `valid` and `valid_accuracy` are measured only where training depends on them. Where a method
    trains a task in several rounds, `rounds` has the epochs of each. A loss is None in a state that
    an earlier version saved.
    """

    epochs: Count
    rounds: list[Count] = Field(default_factory=list)
    train: list[float | None] = Field(default_factory=list)
    valid: list[float | None] = Field(default_factory=list)
    valid_accuracy: list[float | None] = Field(default_factory=list)


class WithinTask(Part):
    """Accuracy on some test images of each earlier task within a task, after some of its steps.

    A row for each step, a column for each earlier task. Step 0 is before the first one.
    """

    steps: list[Count] = Field(default_factory=list)
    accuracy: list[list[float]] = Field(default_factory=list)


class HeldEnergy(Part):
    """The share of each class's energy that a layer's projection removes, for some images.

    Classes are in the order they were learnt; `learnt` is after their own task, `final` after the
    last one. None where a class has no image or no energy, or was not measured.
    """

    layer: str
    learnt_train: list[float | None] = Field(default_factory=list)
    learnt_test: list[float | None] = Field(default_factory=list)
    final_train: list[float | None] = Field(default_factory=list)
    final_test: list[float | None] = Field(default_factory=list)


class NewerRecord(UserError):
    """A record that a newer version of classgrad wrote."""


class Seconds(Part):
    """Wall-clock time by phase."""

    train: float = 0.0
    memory: float = 0.0
    evaluate: float = 0.0

    @property
    def total(self) -> float:
        """Time of all phases."""
        return self.train + self.memory + self.evaluate


class RunRecord(Part):
    """Settings and results of a run. Accuracies are in per cent."""

    schema_version: int = SCHEMA_VERSION
    benchmark: str
    benchmark_options: dict[str, Any]
    tasks: list[str]
    data_notes: list[str] = Field(default_factory=list)
    data: str = ""  # digest of all images and labels; empty in older records
    method: dict[str, Any]
    method_source: str | None = None  # MODULE:NAME of the class, if it is the user's own
    network: str
    network_options: dict[str, Any]
    recipe: str
    training: dict[str, Any]
    seed: int
    defaults: Annotated[Count, Field(ge=1)] = 1  # version, see `classgrad.defaults`
    accuracy_matrix: Matrix = Field(default_factory=list)
    accuracy_matrix_task_free: Matrix = Field(default_factory=list)
    accuracy_matrix_task_free_prototypes: Matrix = Field(default_factory=list)
    accuracy_matrix_task_free_statistics: Matrix = Field(default_factory=list)
    average_accuracy: float | None = None
    average_accuracy_task_free: float | None = None
    average_accuracy_task_free_prototypes: float | None = None
    average_accuracy_task_free_statistics: float | None = None  # None: not comparable over tasks
    # Whether task-free accuracy was measured on batches that mix tasks; not so in older records.
    task_free_batches: Literal["mixed", "one task"] = "one task"
    # Task unknown, after the last task that was measured so: of the test images of each task, the
    # share answered with a class of each task, by confidence, prototypes and statistics.
    task_confusion: dict[str, Matrix] = Field(default_factory=dict)
    backward_transfer: float | None = None
    forgetting: float | None = None
    forward_transfer: float | None = None
    average_incremental_accuracy: float | None = None  # mean of ACC after every task
    accuracy_when_learnt: float | None = None
    lowest_accuracy: float | None = None  # of a task after it was learnt, mean over tasks
    within_tasks: list[WithinTask] = Field(default_factory=list)
    curves: list[Curve] = Field(default_factory=list)  # of each task
    classes: list[ClassResult] = Field(default_factory=list)
    layers: list[Layer] = Field(default_factory=list)
    held: list[HeldEnergy] = Field(default_factory=list)
    seconds: Seconds = Field(default_factory=Seconds)
    memory_bytes: Count = 0  # kept between tasks besides the network
    network_bytes: Count = 0  # parameters and buffers of the network; 0 in older records
    parameters: Count = 0
    capacity: float | None = None  # stored parameters, per cent of the base network's with heads
    versions: dict[str, str] = Field(default_factory=dict)
    # Of the package, or its version; several if the run was resumed with other code.
    commits: list[str] = Field(default_factory=list)
    device: str = "cpu"  # where the last task was learnt
    precision: str = "float32"  # in which the trunk multiplied
    processes: Count = 1  # how many learnt the last task
    threads: Count | None = None  # of each process then
    complete: bool = False

    @model_validator(mode="after")
    def _refuse_inconsistent(self) -> Self:
        if not isinstance(self.method.get("name"), str):
            raise ValueError("the method has no name")
        if len(self.accuracy_matrix) > len(self.tasks):
            raise ValueError("accuracy_matrix has more rows than there are tasks")
        if not all(layer.ranks for layer in self.layers):
            raise ValueError("a layer has no ranks")
        if any(len(layer.groups) != len(layer.cosines) for layer in self.layers):
            raise ValueError("groups and cosines of a layer differ in number")
        return self

    @property
    def reveals_task(self) -> bool:
        """Whether task-free accuracy is too high: BatchNorm saw batches of one task each."""
        options = self.network_options
        uses_batches = options.get("norm") == "batch" and options.get("batch_norm", True)
        return self.task_free_batches == "one task" and bool(uses_batches)

    @property
    def method_name(self) -> str:
        """Name of the method."""
        return str(self.method["name"])

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, as `Plan.as_dict` has them."""
        names = ("benchmark", "benchmark_options", "method", "network", "network_options")
        return self.model_dump(include={*names, "recipe", "training", "seed", "defaults"})

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json_lines(self.model_dump()) + "\n"

    def save(self, folder: Path) -> Path:
        """Write the record into a folder, atomically; return its path."""
        path = folder / FILE_NAME
        write_text(path, self.to_json())
        return path

    @classmethod
    def load(cls, path: Path | str) -> "RunRecord":
        """Read a record from the folder of a run, or from the file itself."""
        path = Path(path)
        file = path / FILE_NAME if path.is_dir() else path
        try:
            data = from_json(file.read_bytes(), allow_inf_nan=False)
            # 1e999 is read as infinity nevertheless, which could not be written again.
            json.dumps(data, allow_nan=False)
        except FileNotFoundError:
            raise UserError(f"no run at '{path}': give a folder that holds {FILE_NAME}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"'{file}' is not a record: {shown(error)}") from None
        schema = data.get("schema_version") if isinstance(data, dict) else None
        if isinstance(schema, int) and schema > SCHEMA_VERSION:
            raise NewerRecord(
                f"'{file}' has schema {shown(schema)}, newer than {SCHEMA_VERSION}: update "
                "classgrad"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            what = f"{place}: {first['msg'].removeprefix('Value error, ')}"
            raise UserError(f"'{file}' is not a record: {shown(what)}") from None


def json_lines(value: Any, depth: int = 0) -> str:
    """Return a value as JSON, indented by one; a list of plain values takes one line.

    >>> print(json_lines({"a": [1.5, None], "b": {}}))
    {
     "a": [1.5, null],
     "b": {}
    }
    """
    nested = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    if not value or not (nested or isinstance(value, dict)):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, dict):
        named = value.items()
        items = [f"{json.dumps(str(n))}: {json_lines(item, depth + 1)}" for n, item in named]
    else:
        items = [json_lines(item, depth + 1) for item in value]
    start, end = "[]" if nested else "{}"
    inside = "\n" + " " * (depth + 1)
    return start + inside + f",{inside}".join(items) + "\n" + " " * depth + end


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results can depend on."""
    packages = ("classgrad", "torch", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def rows(matrix: "Tensor") -> Matrix:
    """Return a matrix as lists, with None for NaN."""
    return [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]
