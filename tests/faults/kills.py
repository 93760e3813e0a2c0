"""Kill runs without warning, let them go on, and compare how they end with a run left alone.

Children are forked from this process, which has loaded everything and computes with one thread, so
that a child starts at once.
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
from pathlib import Path
from typing import Any

import torch

from classgrad.checkpoints import Keeper, encoding, files
from classgrad.plan import make_plan
from classgrad.run_state import go_on
from classgrad.runs import Run
from streams import blobs

STREAM = blobs()
QUICK = {"epochs": 3, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.8, "warmup": 3}
NORMS = {"batch_norm": True, "norm": "stored", "affine": "task", "dropout": 0.2, "width": 24}
FEWER = {"rcl": {"trials": 2, "child_epochs": 2}}
SAVE_EVERY = 4  # steps
END = "end.json"


def start(name: str, folder: Path) -> Run:
    """Return a run of a method on a small stream."""
    plan = make_plan(STREAM, name, values={**QUICK, **NORMS, **FEWER.get(name, {})})
    return Run(plan, STREAM, folder, Keeper(folder, steps=SAVE_EVERY))


def digest(state: Any) -> str:
    """Return what tells a state from any other, to the last bit."""
    tree, tensors = encoding.encode(state)
    found = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def run_to_end(name: str, folder: Path) -> None:
    """Learn, or go on learning, and write down how it ended."""
    running = start(name, folder)
    record = go_on(running)
    states = {"net": running.net.state_dict(), "method": running.method.state_dict()}
    ended = {"record": record.model_dump(exclude={"seconds"}), "states": digest(states)}
    (folder / END).write_text(json.dumps(ended))


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


def die() -> None:
    """End this process without warning."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at(name: str, folder: Path, place: str, number: int) -> Callable[[], None]:
    """Return a run that dies in a certain place: in a step, the base update, or while saving."""

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        left = [number]

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                die()
            return call(*args, **kwargs)

        return wrapper

    def work() -> None:
        if place == "saving":
            files._write_file = counted(files._write_file)
        elif place == "renaming":
            os.rename = counted(os.rename)
        else:
            owner = type(start(name, folder / "unused").method)
            setattr(owner, place, counted(getattr(owner, place)))
        run_to_end(name, folder)

    return work


def survives(name: str, folder: Path, kills: int, seed: int = 1) -> dict[str, Any]:
    """Kill runs of a method so many times; tell how often, and whether all ended alike."""
    chance = random.Random(f"{name} {seed}")
    began = time.monotonic()
    alone = folder / "alone"
    assert os.waitpid(in_child(lambda: run_to_end(name, alone)), 0)[1] == 0, name
    lasted = time.monotonic() - began
    expected = json.loads((alone / END).read_text())
    places = ["loss", "end_task", "saving", "renaming", "begin_task", "after_step"]
    done = {"random": 0, "placed": 0}
    wrong = 0
    victim = folder / "victim"
    while sum(done.values()) < kills:
        if sum(done.values()) % 2:
            place = places[done["placed"] % len(places)]
            child = in_child(dying_at(name, victim, place, chance.randint(1, 3)))
        else:
            child = in_child(lambda: run_to_end(name, victim))
            time.sleep(chance.uniform(0, lasted))
            os.kill(child, signal.SIGKILL)
            place = "random"
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status)
        if killed:
            done["random" if place == "random" else "placed"] += 1
        elif status:
            wrong += 1
            done["random"] += 1
        if (victim / END).exists():  # it was done before it could be killed
            wrong += json.loads((victim / END).read_text()) != expected
            shutil.rmtree(victim)
    status = os.waitpid(in_child(lambda: run_to_end(name, victim)), 0)[1]
    wrong += status != 0 or json.loads((victim / END).read_text()) != expected
    return {**done, "wrong": wrong, "seconds": time.monotonic() - began}
