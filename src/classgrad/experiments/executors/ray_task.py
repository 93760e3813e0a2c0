"""One run as a task of a Ray cluster, in a process of its own."""

import json
import os
import socket
import traceback
from typing import Any

import torch

from classgrad.experiments.executors.worker import carry_out


def attempt(job: bytes, number: int, mailbox: Any) -> dict[str, Any]:
    """Do a job, and return the message on its end; others go into the mailbox, with the number.

    A message that gets lost is no harm: only the last one counts, and that is returned.
    """
    values = json.loads(job)
    end: dict[str, Any] = {}

    def send(message: dict[str, Any]) -> None:
        if "end" in message:
            end.update(message)
        else:
            mailbox.put.remote(number, message)

    send({"machine": socket.gethostname(), "process": os.getpid()})
    torch.set_num_threads(values["threads"])
    try:
        carry_out(values, send)
    except Exception:
        return {"trace": traceback.format_exc()}
    return end
