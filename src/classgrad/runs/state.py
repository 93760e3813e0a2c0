"""The state of a run: what is kept of it, and how a run that was cut short goes on."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgrad.checkpoints import Keeper, Lock
from classgrad.checkpoints.errors import understood
from classgrad.checkpoints.keeper import FOLDER
from classgrad.devices import moved
from classgrad.distributed import started_before, world
from classgrad.errors import UserError, shown
from classgrad.prediction.accuracy import Judge, Score
from classgrad.runs.record import FILE_NAME, NewerRecord, RunRecord

ONE_FOLDER = "give --out a folder that all of them see"
PATIENCE = 60.0  # seconds for a file of one process to be seen by others

if TYPE_CHECKING:
    from classgrad.runs.run import Run
    from classgrad.training.loop import Observer


def go_on(
    run: "Run",
    observer: "Observer | None" = None,
    *,
    tell: Callable[[str], None] = lambda line: None,
    locked: bool = False,
) -> RunRecord:
    """Learn what a run has not learnt yet, and keep its state in its folder; return the record.

    The record of a finished run is returned as it is. `tell` gets a line for whatever a user should
    know. `locked` says that another process, which waits for this one, has locked the folder.
    """
    assert run.folder is not None
    assert run.keeper is not None
    with nullcontext() if locked else locking(run.folder):
        finished = finished_record(run, tell)
        seen = {f"whether '{run.folder}' holds a record": bool(finished)}
        world().refuse_differences(seen, ONE_FOLDER)
        if finished:
            tell(f"{run.method.name}: finished before; --fresh learns it again")
            run.keeper.clear()  # killed right at its end, it could not do so itself
            return finished
        loaded = run.keeper.load()
        counter = loaded and loaded.counter
        world().refuse_differences({f"checkpoints in '{run.folder}'": counter}, ONE_FOLDER)
        if loaded:
            for warning in loaded.warnings:
                tell(f"{warning}; going on from the one before")
            restore(run, loaded.state)
            tell(f"{run.method.name}: going on with task {len(run.scores) + 1}")
        record = run.go(observer)
        run.keeper.clear()
        return record


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """Keep other runs away from a folder while the block runs; the first process does it."""
    lock = Lock(folder)
    world().on_main_process(lock.__enter__)
    try:
        if world().size > 1:
            sight = {f"whether they see '{folder}'": seen(lock.path)}
            world().refuse_differences(sight, ONE_FOLDER)
        yield
    finally:
        lock.release()


def seen(path: Path) -> bool:
    """Tell whether there is such a file; a network filesystem may take a while to show it."""
    end = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError):
            if path.name in os.listdir(path.parent):  # what is listed is asked for anew
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


def write(record: RunRecord, folder: Path) -> None:
    """Write a record."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record.save(folder)
    except OSError as error:
        raise UserError(f"the record cannot be written to '{folder}': {error}") from None


def something_kept(folder: Path) -> bool:
    """Tell whether a folder has anything of a run."""
    return (folder / FOLDER).is_dir() or (folder / FILE_NAME).is_file()


def taken(run: "Run", unfinished: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the state of a run: between two tasks, or with that of the training loop in one."""
    record = run.record.model_dump()
    if unfinished:
        record["seconds"]["train"] += time.perf_counter() - run.started
    return {
        "plan": run.plan.as_dict(),
        "data": run.fingerprint,
        "tasks": len(run.net.heads),
        "net": None if unfinished else run.net.state_dict(),  # the loop has it
        "method": run.method.state_dict(),
        "judge": vars(run.judge),
        "scores": [[dataclasses.asdict(score) for score in row] for row in run.scores],
        "before": run.before,
        "untrained": run.untrained,
        "steps": run.steps,
        "record": record,
        "unfinished": unfinished,
    }


def restore(run: "Run", state: Mapping[str, Any]) -> None:
    """Bring a run that has not begun to a state that was kept."""
    with understood(f"what is kept in '{run.folder}'"):
        _restore(run, state)


def _restore(run: "Run", state: Mapping[str, Any]) -> None:
    refuse_others(run, {**state["plan"], "data": state["data"]})
    for number in range(1, state["tasks"]):
        run.net.add_task(run.stream[number].classes)
    run.unfinished = state["unfinished"]
    # The method first: it gives layers their sizes.
    run.method.take_up(state["method"], run.net)
    run.net.load_state_dict((run.unfinished or state)["net"])
    run.judge = Judge(**moved(state["judge"], run.device))
    run.scores = [[Score(**score) for score in row] for row in state["scores"]]
    run.before, run.untrained = list(state["before"]), list(state["untrained"])
    run.steps = state.get("steps", 0)  # states of earlier versions do not count them
    run.record = RunRecord.model_validate(state["record"])


def forget(folders: Iterable[Path]) -> None:
    """Remove records and states of runs, so that all of them are learnt again.

    Not if torchrun has started the processes again: it does so with the same words, and what they
    have learnt since is not to be forgotten.
    """
    if started_before():
        return
    with ExitStack() as all_locks:
        folders = list(folders)
        for folder in folders:
            all_locks.enter_context(locking(folder))
        for folder in folders:
            world().on_main_process(partial(_unlink, folder / FILE_NAME))
            Keeper(folder).clear()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot start again in '{path.parent}': {error.strerror}") from None


def finished_record(run: "Run", tell: Callable[[str], None]) -> RunRecord | None:
    """Return the record in a run's folder, if it is complete."""
    assert run.folder is not None
    if not (run.folder / FILE_NAME).exists():
        return None
    try:
        record = RunRecord.load(run.folder)
    except NewerRecord:
        raise
    except UserError as error:
        tell(f"{error}; it is written again")
        return None
    found = record.model_dump(include=set(run.plan.as_dict()))
    refuse_others(run, {**found, "data": record.data} if record.data else found)
    return record if record.complete else None


def refuse_others(run: "Run", found: Mapping[str, Any]) -> None:
    """Refuse what was kept of a run with other settings or other data."""
    mine = run.plan.as_dict()
    if "data" in found:
        mine["data"] = run.fingerprint
    other, here = dict(flat(found)), dict(flat(mine))
    names = [name for name in {**other, **here} if other.get(name) != here.get(name)]
    if names:
        several = [f"{n} {other.get(n)} there, {here.get(n)} here" for n in names[:4]]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        raise UserError(
            f"'{run.folder}' holds another run: {shown(', '.join(several))}{more}; give another "
            "folder with --out, or --fresh to start again"
        )


def flat(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values of nested dicts with dotted names."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, values
