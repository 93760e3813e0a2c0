"""Processor time of commands in new processes: help, list, and the prediction of one photo.

Seconds of the processor, unlike those of a clock, hardly depend on what else the machine does.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.images import random_task
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench, Call
from classgrad import Learner
from classgrad.learner.kinds import NETWORK

SIZE = (1600, 1200)  # of the photo
LIMITS = {"--help": 0.3, "list": 0.5, "predict": 2.5}  # seconds
NOTE = (
    f"each in a new process; predict of one photo, with {NETWORK['images']}, the default of a "
    "learner"
)


def measure(bench: Bench) -> list[Row]:
    """Run the commands alternately, and a process that only imports torch."""
    with tempfile.TemporaryDirectory() as temporary:
        state, photo = Path(temporary) / "state", Path(temporary) / "photo.jpg"
        save_learner(state, photo)
        given = {"predict": [str(state), str(photo)]}
        calls = {name: process("-m", "classgrad", name, *given.get(name, [])) for name in LIMITS}
        calls["torch"] = process("-c", "import torch")
        timings = bench.alternate(calls, rounds=5, clock=processor_time)
    times = {name: Quantity.of(timing) for name, timing in timings.items()}
    return [
        *(
            Row(
                f"processor time of classgrad {name}",
                times[name],
                None,
                times[name].value,
                bound=Bound(limit, unit="s"),
                note=NOTE,
            )
            for name, limit in LIMITS.items()
        ),
        Row.share(
            "processor time of classgrad predict / import torch",
            times["predict"],
            times["torch"],
            note=NOTE,
        ),
    ]


def save_learner(state: Path, photo: Path) -> None:
    """Save a learner with default settings that has learnt photos of ten classes, and a photo."""
    split = random_task(0, per_class=5).train
    pictures = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in split.images]
    with tempfile.TemporaryDirectory() as folder:
        for number, (picture, label) in enumerate(zip(pictures, split.labels, strict=True)):
            of_class = Path(folder) / f"class {label}"
            of_class.mkdir(exist_ok=True)
            picture.save(of_class / f"{number}.png")
        Learner().learn("task", folder, checkpoint_dir=state)
    pictures[0].resize(SIZE).save(photo)


def process(*arguments: str) -> Call:
    """Return a function that runs Python in a new process."""
    # Compiled modules are kept, as they are for users: the first process compiles them.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)

    return run


def processor_time() -> float:
    """Return the seconds that all processes started from this one, and ended, have computed."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
