"""Kill runs without warning, resume them, and compare how they end with a run left alone.

Children are forked from this process, which has loaded everything and computes with one thread, so
that a child starts at once: `warm_up` first.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from classgrad.checkpoints import CheckpointManager, encoding, files
from classgrad.methods import METHODS
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from streams import blobs

STREAM = blobs(tasks=2, per_class=8)
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.8, "warmup": 3}
NORMS = {"batch_norm": True, "norm": "stored", "affine": "task", "dropout": 0.2, "width": 24}
FEWER = {"rcl": {"trials": 2, "child_epochs": 2}}
SAVE_EVERY = 2  # steps
END = "end.json"
RANDOM = "random moment"
# Where else a run is killed, and the function that is called there.
CALLS = [
    ("step", "loss"),
    ("base update", "end_task"),
    ("saving", "_write_file"),
    ("start of a task", "begin_task"),
    ("saving", "rename"),
    ("step", "after_step"),
]


def warm_up() -> None:
    """Load what PyTorch loads with the first optimiser: a second that every child would take."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def start(name: str, folder: Path) -> Run:
    """Return a run of a method on a small stream."""
    plan = make_plan(STREAM, name, values={**QUICK, **NORMS, **FEWER.get(name, {})})
    return Run(plan, STREAM, folder, CheckpointManager(folder, steps=SAVE_EVERY))


def digest(state: Any) -> str:
    """Return what tells a state from any other, to the last bit."""
    tree, tensors = encoding.encode(state)
    result = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for name in sorted(tensors):
        result.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


def run_to_end(name: str, folder: Path) -> None:
    """Learn, or resume, and write down how it ended."""
    running = start(name, folder)
    record = running.resume().model_dump(exclude={"seconds"})
    states = {"net": running.net.state_dict(), "method": running.method.state_dict()}
    # Killed when all was done, a run has its record and nothing more to learn.
    learnt = digest(states) if running.scores else None
    part = folder / f"{END}.part"
    part.write_text(json.dumps({"record": record, "states": learnt}))
    os.replace(part, folder / END)  # a kill may come in the middle of writing


def in_child(work: Callable[[], None]) -> int:
    """Do something in a process of its own; return its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def dying(call: Callable[..., Any], number: int, late: bool) -> Callable[..., Any]:
    """Return a function that ends the process in its so-manieth call: before its work, or after."""
    left = [number]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        result = call(*args, **kwargs) if left[0] or late else None
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapper


def run_dying(name: str, folder: Path, call: str, number: int, late: bool) -> None:
    """Learn until a certain call of a function of the method, or of those that save."""
    owners = {"_write_file": files, "rename": os}
    owner = owners.get(call) or METHODS[name]
    setattr(owner, call, dying(getattr(owner, call), number, late))
    run_to_end(name, folder)


def survives(name: str, folder: Path, kills: int, seed: int = 1) -> dict[str, Any]:
    """Kill runs of a method so many times; tell where, and how many ended otherwise than alone.

    Every second kill is at a random moment. The others go round the places in `CALLS`, and begin
    with another one for each method, so that few kills of every method come to all places.
    """
    rng = random.Random(f"{name} {seed}")
    began = time.monotonic()
    alone, victim = folder / "alone", folder / "victim"
    assert ended(in_child(lambda: run_to_end(name, alone))) == 0, name
    lasted = time.monotonic() - began
    result = dict.fromkeys((RANDOM, *(place for place, _ in CALLS)), 0)
    wrong = 0
    while sum(result.values()) < kills:
        count = sum(result.values())
        if count % 2:
            place, call = CALLS[(count // 2 + list(METHODS).index(name)) % len(CALLS)]
            number, late = rng.randint(1, 3), rng.random() < 0.5
            child = in_child(partial(run_dying, name, victim, call, number, late))
        else:
            place, child = RANDOM, in_child(lambda: run_to_end(name, victim))
            time.sleep(rng.uniform(0, lasted))
            os.kill(child, signal.SIGKILL)
        code = ended(child)
        if code == -signal.SIGKILL:
            result[place] += 1
        elif code:
            wrong += 1
            break  # it failed, and said why
        if (victim / END).exists():  # it was done before it could be killed
            lasted *= 0.9  # or a run that was slow once would let all others come to their end
            wrong += differ(victim, alone)
            shutil.rmtree(victim)
    code = ended(in_child(lambda: run_to_end(name, victim)))
    wrong += code != 0 or differ(victim, alone)
    return {"kills": result, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}


def differ(victim: Path, alone: Path) -> bool:
    """Tell whether a run ended otherwise than one that was left alone."""
    result, expected = (json.loads((folder / END).read_text()) for folder in (victim, alone))
    if result["states"] is None:
        return bool(result["record"] != expected["record"])
    return bool(result != expected)


def ended(child: int) -> int:
    """Wait for a process; return its exit code, or the signal that ended it as a negative one."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
