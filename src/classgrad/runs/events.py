"""Curves of a run for TensorBoard, as event files in its folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from classgrad.errors import UserError
from classgrad.runs.record import RunRecord
from classgrad.training.loop import Progress

FOLDER = "tensorboard"  # inside that of the run
EVERY = 10  # steps between two points of a curve


def refuse_missing() -> None:
    """Refuse to start without the package that writes event files."""
    if find_spec("tensorboard") is None:
        raise UserError(
            "TensorBoard curves need a package that is not installed: pip install "
            "'classgrad[tensorboard]'"
        )


def has_curves(folder: Path) -> bool:
    """Tell whether the folder of a run has curves."""
    return (folder / FOLDER).is_dir()


class Events:
    """Writes the curves of a run that has taken `steps` steps so far.

    Points that a run wrote beyond that before it was cut short are discarded.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder / FOLDER
        with self.writing():
            self.writer = SummaryWriter(str(self.folder), purge_step=steps + 1)

    def step(self, number: int, at: Progress) -> None:
        """Write loss and learning rate of a step, counted from 1 through all tasks."""
        if number % EVERY == 0:
            self.put({"training/loss": at.loss, "training/learning_rate": at.rate}, number)

    def task(self, number: int, record: RunRecord) -> None:
        """Write what was measured after a task; `number` is that of its last step."""
        values = {"summary/ACC": record.average_accuracy, "summary/BWT": record.backward_transfer}
        row = record.accuracy_matrix[-1]
        for task, (name, accuracy) in enumerate(zip(record.tasks, row, strict=False), start=1):
            values[f"accuracy/{task} {name}"] = accuracy
        for layer in record.layers:
            values[f"in_use/{layer.name}"] = layer.ranks[-1] / layer.dimension
        self.put(values, number)
        self.flush()

    def put(self, values: dict[str, float | None], number: int) -> None:
        """Write values at a step, except those that are None."""
        with self.writing():
            for name, value in values.items():
                if value is not None:
                    self.writer.add_scalar(name, value, number)

    def flush(self) -> None:
        """Write everything to disk."""
        with self.writing():
            self.writer.flush()

    def close(self) -> None:
        """Write the rest, and close the file."""
        with self.writing():
            self.writer.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of the filesystem into one line."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write to '{self.folder}': {error.strerror}; free some space, or leave out "
                "the curves",
                hint="tensorboard",
            ) from None
