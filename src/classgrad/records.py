"""The record of a run: one JSON file that says what was run and what came out."""

import json
import math
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from classgrad.errors import UserError

SCHEMA_VERSION = 1
FILE_NAME = "record.json"

Matrix = list[list[float | None]]


class Layer(BaseModel):
    """Protected directions of one layer after each task, of `dimension` in all."""

    name: str
    dimension: int
    ranks: list[int] = Field(default_factory=list)


class ClassResult(BaseModel):
    """Accuracy of the classes of one task, in per cent: when learnt, and at the end."""

    task: str
    classes: list[str]
    learnt: list[float | None]
    final: list[float | None]
    forgetting: list[float | None]


class Seconds(BaseModel):
    """Wall-clock time by phase."""

    train: float = 0.0
    memory: float = 0.0
    evaluate: float = 0.0

    @property
    def total(self) -> float:
        """Time of all phases."""
        return self.train + self.memory + self.evaluate


class RunRecord(BaseModel):
    """Everything worth keeping of a run. Accuracies are per cent."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    benchmark: str
    benchmark_options: dict[str, Any]
    tasks: list[str]
    data_notes: list[str] = Field(default_factory=list)
    method: dict[str, Any]
    network: str
    network_options: dict[str, Any]
    recipe: str
    training: dict[str, Any]
    seed: int
    accuracy_matrix: Matrix = Field(default_factory=list)
    accuracy_matrix_task_free: Matrix = Field(default_factory=list)
    accuracy_matrix_task_free_prototypes: Matrix = Field(default_factory=list)
    average_accuracy: float | None = None
    average_accuracy_task_free: float | None = None
    average_accuracy_task_free_prototypes: float | None = None
    backward_transfer: float | None = None
    forgetting: float | None = None
    forward_transfer: float | None = None
    classes: list[ClassResult] = Field(default_factory=list)
    layers: list[Layer] = Field(default_factory=list)
    seconds: Seconds = Field(default_factory=Seconds)
    memory_bytes: int = 0
    parameters: int = 0
    capacity: float | None = None  # stored parameters, per cent of the base network's with heads
    versions: dict[str, str] = Field(default_factory=dict)
    complete: bool = False

    @property
    def method_name(self) -> str:
        """Name of the method."""
        return str(self.method["name"])

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(self.model_dump(), indent=1, allow_nan=False) + "\n"

    def save(self, folder: Path) -> Path:
        """Write the record into a folder, whole or not at all; return its path."""
        path = folder / FILE_NAME
        part = path.with_suffix(".part")
        with open(part, "w", encoding="utf-8") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        return path

    @classmethod
    def load(cls, path: Path | str) -> "RunRecord":
        """Read the record of a run, given its folder or the file itself."""
        path = Path(path)
        file = path / FILE_NAME if path.is_dir() else path
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"no run at '{path}': give a folder that holds {FILE_NAME}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"'{file}' is not a record: {error}") from None
        found = data.get("schema_version") if isinstance(data, dict) else None
        if isinstance(found, int) and found > SCHEMA_VERSION:
            raise UserError(
                f"'{file}' has schema {found}, newer than {SCHEMA_VERSION}: update classgrad"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            raise UserError(f"'{file}' is not a record: {place}: {first['msg']}") from None


def versions() -> dict[str, str]:
    """Return the versions that a result can depend on."""
    packages = ("classgrad", "torch", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def rows(matrix: Tensor) -> Matrix:
    """Return a matrix as lists, with None for NaN."""
    return [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]
