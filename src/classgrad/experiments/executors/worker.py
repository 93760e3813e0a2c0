"""Run one job: in a task of Ray, or as `python -m classgrad.experiments.executors.worker`.

That process reads the job as one line of JSON from standard input and writes messages, each a line
of JSON (see `jobs.Status`), to standard output. When standard input is closed, its parent process
has ended: it saves its state and ends, too.
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

MESSAGE_INTERVAL = 0.2  # seconds between two messages on progress

Send = Callable[[dict[str, Any]], None]


def to_json(job: Job, options: Options, *, locked: bool = False) -> bytes:
    """Return a job as `run_job` reads it; `locked` if the caller holds the lock of its folder."""
    values = {"plan": job.plan.as_dict(), "folder": job.folder, "url": job.url, "locked": locked}
    return json.dumps({**asdict(options), **values}, default=str).encode()


def run_job(text: bytes, send: Send) -> None:
    """Run a job, and send messages on its progress and its end."""
    try:
        record = learn(json.loads(text), send)
    except InUse as error:
        send({"end": "busy", "why": str(error)})
    except UserError as error:
        send({"end": "failed", "why": str(error)})
    except Stopped:
        send({"end": "stopped"})
    else:
        send({"end": "done", "done": 1.0, **measures(record)})


def learn(job: dict[str, Any], send: Send) -> RunRecord:
    """Start or resume the run of a job; return its record."""
    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    plan, minutes, sent = Plan.from_dict(job["plan"]), job["save_minutes"], 0.0
    with checkpoints_at(Path(job["folder"]), job["url"], minutes=minutes) as (folder, checkpoints):
        run = Run(
            plan, load_stream(plan, job["data_dir"]), folder, checkpoints, device=job["device"]
        )

        def observer(at: Progress) -> None:
            nonlocal sent
            if time.monotonic() - sent >= MESSAGE_INTERVAL:
                sent = time.monotonic()
                position = {"task": at.task, "tasks": len(run.stream), "done": run.share_done(at)}
                send({**position, **measures(run.record)})

        def tell(line: str, hint: str | None = None) -> None:
            send({"tell": line})

        with checkpoints.handle_stop_signals():
            return run.resume(observer, tell=tell, locked=job["locked"])


def measures(record: RunRecord) -> dict[str, Any]:
    """Return accuracy and backward transfer of the tasks learnt so far."""
    return {"accuracy": record.average_accuracy, "transfer": record.backward_transfer}


def main() -> None:
    """Run the job that is read from standard input."""
    output = os.dup(1)
    os.dup2(2, 1)  # anything that is printed goes to standard error

    def send(message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the parent has ended, so standard input closes, too
            os.write(output, json.dumps(message).encode() + b"\n")

    job = sys.stdin.buffer.readline()
    threading.Thread(target=stop_when_input_closes, daemon=True).start()
    run_job(job, send)


def stop_when_input_closes() -> None:
    """Wait until standard input is closed, then send SIGTERM to this process."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
