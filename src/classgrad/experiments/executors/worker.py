"""One job, here or on another machine; as `python -m classgrad.experiments.executors.worker`.

That process reads the job as one line of JSON from standard input and writes messages, each a line
of JSON (see `jobs.Status`), to standard output. When standard input is closed, whoever started it
is gone: it saves its state and ends.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from classgrad.checkpoints.lock import InUse
from classgrad.errors import Stopped, UserError
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import Job
from classgrad.experiments.remote import checkpoints_at
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import Plan
from classgrad.training.loop import Progress

PAUSE = 0.2  # seconds between two messages on progress

Send = Callable[[dict[str, Any]], None]


def to_json(job: Job, options: Options, *, locked: bool = False) -> bytes:
    """Return a job as `carry_out` reads it; `locked` says that its folder is locked for it."""
    values = {"plan": job.plan.as_dict(), "folder": job.folder, "url": job.url, "locked": locked}
    return json.dumps({**asdict(options), **values}, default=str).encode()


def carry_out(text: bytes, send: Send) -> None:
    """Do a job, and tell how far it is and how it ended."""
    try:
        record = learn(json.loads(text), send)
    except InUse as error:
        send({"end": "busy", "why": str(error)})
    except UserError as error:
        send({"end": "failed", "why": str(error)})
    except Stopped:
        send({"end": "stopped"})
    else:
        send({"end": "done", "done": 1.0, **measured(record)})


def learn(job: dict[str, Any], send: Send) -> RunRecord:
    """Learn what is not learnt yet; return the record."""
    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    plan, minutes, sent = Plan.from_dict(job["plan"]), job["save_minutes"], 0.0
    with checkpoints_at(Path(job["folder"]), job["url"], minutes=minutes) as (folder, checkpoints):
        run = Run(
            plan, load_stream(plan, job["data_dir"]), folder, checkpoints, device=job["device"]
        )

        def observer(at: Progress) -> None:
            nonlocal sent
            if time.monotonic() - sent >= PAUSE:
                sent = time.monotonic()
                place = {"task": at.task, "tasks": len(run.stream), "done": run.share_done(at)}
                send({**place, **measured(run.record)})

        def tell(line: str, hint: str | None = None) -> None:
            send({"tell": line})

        with checkpoints.handle_stop_signals():
            return run.resume(observer, tell=tell, locked=job["locked"])


def measured(record: RunRecord) -> dict[str, Any]:
    """Return what was measured so far."""
    return {"accuracy": record.average_accuracy, "transfer": record.backward_transfer}


def main() -> None:
    """Do the job that standard input describes."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed goes to standard error

    def send(message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # nobody listens any more, and the input ends too
            os.write(output, json.dumps(message).encode() + b"\n")

    job = sys.stdin.buffer.readline()
    threading.Thread(target=end_with_input, daemon=True).start()
    carry_out(job, send)


def end_with_input() -> None:
    """Wait until standard input is closed, then ask this process to stop."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
