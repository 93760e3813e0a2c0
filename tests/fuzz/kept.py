"""What a run keeps beside its record: weights, heads and bases, with a checksum that is right."""

from pathlib import Path

from classgrad.runs import kept
from classgrad.runs.load import load_run
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from fuzz.guards import changed_states
from fuzz.target import Target
from streams import blobs

STREAM = blobs(tasks=2, classes=2, per_class=4)
VALUES = {"epochs": 1, "batch_size": 8, "width": 8, "samples": 4, "contrast": 0}


def _make(folder: Path) -> Path:
    """Let a run keep what it has learnt; return the file."""
    Run(make_plan(STREAM, "cgp", values=VALUES), STREAM, folder, keep="last").resume()
    return kept.file_after(folder, 2)


def _read(folder: Path) -> None:
    """Load it, and use it."""
    loaded = load_run(folder, benchmark=STREAM)
    loaded.net.eval()(STREAM.test(1).unit_images(slice(None)), 1)
    loaded.method.layer_ranks()


TARGETS = (Target("weights of a run", _make, _read, changed_states),)
