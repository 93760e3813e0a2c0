"""The log of training, by Python's `logging`: a line for each task, and for epochs of long ones.

Nothing is shown unless the program that uses the library asks for it:

    logging.basicConfig(level=logging.INFO, format="%(message)s")

The logger is `classgrad`. An epoch that ends less than ten seconds after the last line is of level
DEBUG, everything else INFO or above. The `values` of a record are its figures; `as_message` makes
one of the messages in docs/reproduce.md of it.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from classgrad.errors import shown

if TYPE_CHECKING:  # so that what only shows numbers need not import torch
    from classgrad.training.loop import Observer, Progress

# Seconds since the last line after which the end of an epoch has one, and after which any step has.
EPOCH_INTERVAL, STEP_INTERVAL = 10.0, 60.0

logger = logging.getLogger("classgrad")
logger.addHandler(logging.NullHandler())


def write(level: int, event: str, title: str, text: str, **values: Any) -> None:
    """Write a line to the log: a title, if it has one, and a text; `values` are its figures."""
    line = f"{title}: {text}" if title else text
    logger.log(level, "%s", line, extra={"values": {"event": event, "text": text, **values}})


def note(text: str, *, title: str = "", hint: str | None = None, level: int = logging.INFO) -> None:
    """Write a line that has no figures; `hint` is for the command line, as in `UserError`."""
    write(level, "note", title, text, hint=hint)


def as_message(record: logging.LogRecord) -> dict[str, Any]:
    """Return a record as a message; one that another module has logged is a note."""
    values = getattr(record, "values", {"event": "note", "text": record.getMessage()})
    message = {"event": values["event"], "time": timestamp(record.created), **values}
    if values["event"] == "note":  # `tell` is what earlier versions called the whole line
        level, tell = record.levelname.lower(), record.getMessage()
        return {"hint": None, **message, "level": level, "tell": tell}
    return message


def timestamp(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text.

    >>> timestamp(1_790_000_000.5)
    '2026-09-21T14:13:20.500+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class Handler(logging.Handler):
    """Passes records to a function, whose errors are not swallowed."""

    def __init__(self, take: Callable[[logging.LogRecord], None], level: int) -> None:
        super().__init__(level)
        self.take = take

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        self.take(record)


@contextmanager
def handled(take: Callable[[logging.LogRecord], None], level: int) -> Iterator[None]:
    """Pass what is logged in the block, from this level on, to a function."""
    handler, before = Handler(take, level), logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level, before or level))
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


class TrainingLog:
    """Writes the lines of a run, which has so many tasks, or of a learner's task.

    It is told the progress as observers are. `accuracy` and `transfer` are those of the tasks so
    far, if they are known.
    """

    def __init__(self, title: str = "", tasks: int | None = None) -> None:
        self.title, self.tasks = title, tasks
        self.accuracy: float | None = None
        self.transfer: float | None = None
        self._started = self._task_started = self._last_line = time.monotonic()
        self._done_before: float | None = None  # share that was done at the first step
        self._loss, self._steps = 0.0, 0  # sum of losses in this epoch, and number of its steps

    def begin_task(self) -> None:
        """Start the clock of a task."""
        self._task_started = self._last_line = time.monotonic()

    def watch(self, name: str, observer: "Observer | None") -> "Observer | None":
        """Return an observer of one task by itself, which passes everything on to another."""
        if not logger.isEnabledFor(logging.INFO):
            return observer

        def watching(at: "Progress") -> None:
            self.step(at, name, at.step / at.steps)
            if observer is not None:
                observer(at)

        return watching

    def step(self, at: "Progress", name: str, done: float) -> None:
        """Count a step of a task, and write a line if it is time; `done` is the share of all."""
        if not logger.isEnabledFor(logging.INFO):
            return
        now = time.monotonic()
        if self._done_before is None:
            self._done_before, self._started = done, now
        self._loss += at.loss
        self._steps += 1
        since = now - self._last_line
        if at.ends_epoch:
            level = logging.INFO if since >= EPOCH_INTERVAL else logging.DEBUG
            self._write_step(level, "epoch", at, name, done)
            self._loss, self._steps = 0.0, 0
        elif since >= STEP_INTERVAL:
            self._write_step(logging.INFO, "progress", at, name, done)

    def _write_step(self, level: int, event: str, at: "Progress", name: str, done: float) -> None:
        if not logger.isEnabledFor(level):
            return
        values = self.values(at, name, done)
        if values["loss"] is not None:
            values["loss"] = self._loss / self._steps
            where = f", epoch {at.epoch + 1}/{at.epochs}: loss {values['loss']:.3f}"
        else:
            where = f": {at.step:,}/{at.steps:,} images"
        text = f"{self._task(at.task, name)}{where}, {100 * done:.0f} % done"
        self._write(level, event, text + time_left(values["left"]), values)

    def values(self, at: "Progress", name: str, done: float) -> dict[str, Any]:
        """Return the figures of a message on a step; the loss is that of the step."""
        trained = math.isfinite(at.loss)  # or features are computed and nothing is trained
        return {
            **self._position(at.task, name, done),
            "epoch": at.epoch if trained else None,
            "epochs": at.epochs if trained else None,
            "loss": at.loss if trained else None,
        }

    def end_task(self, number: int, name: str, done: float = 1.0) -> None:
        """Write the line of a task that was learnt."""
        seconds = time.monotonic() - self._task_started
        values = {**self._position(number, name, done), "seconds": round(seconds, 3)}
        figures = []
        if self.accuracy is not None:
            word = "accuracy" if self.tasks is None else "ACC"
            figures.append(f"{word} {self.accuracy:.2f} %")
        if self.transfer is not None:
            figures.append(f"BWT {self.transfer:+.2f}")
        said = f": {', '.join(figures)}" if figures else ""
        text = f"{self._task(number, name)} learnt in {duration(seconds)}{said}"
        self._loss, self._steps = 0.0, 0
        left = "" if done == 1 else time_left(values["left"])
        self._write(logging.INFO, "task", text + left, values)

    def _position(self, number: int, name: str, done: float) -> dict[str, Any]:
        left = None
        if self._done_before is not None:
            left = seconds_left(time.monotonic() - self._started, done, self._done_before)
        return {
            "task": number,
            "tasks": self.tasks,
            "name": name,
            "done": done,
            "left": None if left is None else round(left, 3),
            "accuracy": self.accuracy,
            "transfer": self.transfer,
        }

    def _task(self, number: int, name: str) -> str:
        return f"task '{shown(name)}'" if self.tasks is None else f"task {number + 1}/{self.tasks}"

    def _write(self, level: int, event: str, text: str, values: dict[str, Any]) -> None:
        write(level, event, self.title, text, **values)
        if level >= logging.INFO:
            self._last_line = time.monotonic()


def seconds_left(seconds: float, done: float, before: float = 0.0) -> float | None:
    """Return an estimate of the seconds left; None while there is too little to go by.

    The share `done` was `before` when it began, `seconds` ago.

    >>> seconds_left(10.0, done=0.75, before=0.5), seconds_left(1.0, done=0.001)
    (10.0, None)
    """
    since = done - before
    if since <= 0 or (since < 0.01 and seconds < EPOCH_INTERVAL):
        return None
    return seconds * (1 - done) / since


def time_left(seconds: float | None) -> str:
    """Return the end of a line, with the time left if it is known.

    >>> time_left(90), time_left(0.2), time_left(None)
    (', 1.5 min left', '', '')
    """
    return "" if seconds is None or seconds < 1 else f", {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a number of seconds in a readable unit.

    >>> duration(0.25), duration(42), duration(2063), duration(9000), duration(130_000)
    ('0.2 s', '42.0 s', '34.4 min', '2.5 h', '1.5 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
