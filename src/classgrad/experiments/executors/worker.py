"""One run in a process of its own: `python -m classgrad.experiments.executors.worker`.

It reads the job as one line of JSON from standard input and writes messages, each a line of JSON
(see `executors.status`), to standard output. When standard input is closed, whoever started it is
gone: it saves its state and ends.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.lock import InUse
from classgrad.errors import Stopped, UserError
from classgrad.experiments.remote import keeper_at
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import Plan
from classgrad.training.loop import Observer, Progress

PAUSE = 0.2  # seconds between two messages on progress

Send = Callable[[dict[str, Any]], None]


def main() -> int:
    """Do the job that standard input describes; return the exit code."""
    send = messages()
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_input, daemon=True).start()
    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    return carry_out(job, send)


def carry_out(job: dict[str, Any], send: Send) -> int:
    """Do a job, and tell how it ended; return the exit code."""
    try:
        record = learn(job, send)
    except InUse as error:
        send({"end": "busy", "why": str(error)})
        return 2
    except UserError as error:
        send({"end": "failed", "why": str(error)})
        return 2
    except Stopped as stop:
        send({"end": "stopped"})
        return 128 + stop.number
    send({"end": "done", "done": 1.0, **figures(record)})
    return 0


def learn(job: dict[str, Any], send: Send) -> RunRecord:
    """Learn what is not learnt yet; return the record."""
    plan = Plan.from_dict(job["plan"])
    with workplace(job) as (folder, keeper):
        stream = load_stream(plan, job["data_dir"])
        run = Run(plan, stream, folder, keeper, device=job["device"])
        with keeper.listening():
            return run.resume(
                progress(run, send), tell=lambda line: send({"tell": line}), locked=job["locked"]
            )


@contextmanager
def workplace(job: dict[str, Any]) -> Iterator[tuple[Path, CheckpointManager]]:
    """Yield the folder of a job, and what keeps its state there."""
    minutes = job["save_minutes"]
    if job["url"] is None:
        yield Path(job["folder"]), CheckpointManager(Path(job["folder"]), minutes=minutes)
        return
    with keeper_at(job["url"], minutes=minutes) as keeper:
        yield keeper.folder, keeper


def progress(run: Run, send: Send) -> Observer:
    """Return what tells, a few times in a second, where training stands."""
    last = 0.0

    def observer(at: Progress) -> None:
        nonlocal last
        if time.monotonic() - last < PAUSE:
            return
        last = time.monotonic()
        place = {"task": at.task, "tasks": len(run.stream), "done": run.share_done(at)}
        within = {"epoch": at.epoch, "step": at.step, "steps": at.steps, "loss": at.loss}
        send({**place, **within, **figures(run.record)})

    return observer


def figures(record: RunRecord) -> dict[str, Any]:
    """Return what was measured so far."""
    return {"accuracy": record.average_accuracy, "transfer": record.backward_transfer}


def messages() -> Send:
    """Return what writes a message; whatever else is printed goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # nobody listens any more, and the input ends too
            os.write(output, json.dumps(message).encode() + b"\n")

    return send


def end_with_input() -> None:
    """Wait until standard input is closed, then ask this process to stop."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
