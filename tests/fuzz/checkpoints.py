"""The files of a checkpoint, with checksums that are right, the lock of a run, and references."""

import dataclasses
import hashlib
import json
from pathlib import Path
from socket import gethostname

import torch

from classgrad.checkpoints import CheckpointManager, Lock
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.files import MANIFEST, STATE, TENSORS, Entry, Manifest, parse_manifest
from classgrad.learner.drift import Reference
from classgrad.methods import GPM
from classgrad.runs.run import Run
from classgrad.runs.spec import Plan, make_plan
from classgrad.training.loop import Loop
from fuzz.target import Strategy, Target
from fuzz.trees import as_json, changed
from streams import blobs

STREAM = blobs(tasks=2, classes=2, shape=(1, 2, 2), per_class=2)
VALUES = {"width": 3, "epochs": 1, "batch_size": 4, "momentum": 0.9, "schedule": "plateau"}


def _plan() -> Plan:
    return make_plan(STREAM, GPM(), values=VALUES)


def _make(folder: Path, name: str) -> Path:
    """Keep a run in the middle of its second task; return one of the files."""
    run = Run(_plan(), STREAM, folder)
    run.learn(0)
    run.net.add_task(2)
    run.method.begin_task(run.net, STREAM[1])
    loop = _loop(run)
    loop.step(STREAM[1], loop.order_state.new_tensor([0, 1, 2]).long())
    assert run.checkpoints is not None
    run.checkpoints.save(run.state_dict({**loop.state_dict(), "round": 0}))
    run.method.close()
    return folder / "checkpoints" / "000001" / name


def _loop(run: Run) -> Loop:
    return Loop(run.net, run.method, [STREAM[1]], run.plan.training, run.plan.seed)


def _read(folder: Path) -> None:
    """Take a run up from its checkpoint."""
    loaded = CheckpointManager(folder).load()
    if loaded:
        run = Run(_plan(), STREAM, folder)
        with raising_bad_checkpoint("what is kept"):
            run.load_state_dict(loaded.state)
        if run.session.unfinished:
            _loop(run).load_state_dict(run.session.unfinished)


def sign(folder: Path) -> None:
    """Make the manifest fit the files, so that it is not the checksum that refuses."""
    place = folder / "checkpoints" / "000001"
    entries = {}
    for name in (STATE, TENSORS):
        content = (place / name).read_bytes()
        entries[name] = Entry(len(content), hashlib.sha256(content).hexdigest())
    old = parse_manifest((place / MANIFEST).read_bytes())
    (place / MANIFEST).write_bytes(dataclasses.replace(old, files=entries).to_json())


def _read_signed(folder: Path) -> None:
    """Take a run up from files that were changed after they were saved."""
    sign(folder)
    _read(folder)


def _changed_states(sound: bytes) -> Strategy:
    return changed(json.loads(sound)).map(as_json)


def _changed_manifests(sound: bytes) -> Strategy:
    def signed(tree: dict[str, object]) -> bytes:
        try:
            return Manifest(**tree).to_json()  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return as_json(tree)

    fields = {key: value for key, value in json.loads(sound).items() if key != "sha256"}
    return changed(fields).map(signed)


def _make_lock(folder: Path) -> Path:
    path = folder / "lock.json"
    path.write_text(json.dumps({"pid": 2**22 + 1, "host": gethostname(), "started": ""}))
    return path


def _take_lock(folder: Path) -> None:
    with Lock(folder):
        pass


def _changed_locks(sound: bytes) -> Strategy:
    return changed(json.loads(sound)).map(as_json)


def _make_reference(folder: Path) -> Path:
    path = folder / "reference.safetensors"
    identity = {"class_names": ["a", "b"], "samples": [3, 3], "when": "", "sharpness": {"x": 1.0}}
    Reference(torch.ones(2, 3), torch.ones(2, 2), "task", identity).save(path)
    return path


TARGETS = (
    Target("manifest", lambda f: _make(f, MANIFEST), _read, _changed_manifests),
    Target("state", lambda f: _make(f, STATE), _read_signed, _changed_states),
    Target("tensors", lambda f: _make(f, TENSORS), _read_signed),
    Target("lock", _make_lock, _take_lock, _changed_locks),
    Target("reference", _make_reference, lambda f: Reference.load(f / "reference.safetensors")),
)
