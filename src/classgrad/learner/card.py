"""The card of a learner: what it knows, from what, how well, made with what; and a digest of it.

A card is made of what is in the state and of nothing else, so a state has one card, whoever makes
it and whenever. Who signs the digest has signed classes, data, settings, figures and weights.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classgrad import networks
from classgrad.checkpoints.files import fingerprint
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import Store
from classgrad.errors import UserError, shown
from classgrad.learner.info import read
from classgrad.learner.learner import read_state
from classgrad.learner.learnt import LearntTask
from classgrad.methods.projection.forecast import Capacity

SCHEMA = 1
LARGEST = 50_000_000  # bytes of a file that is compared


def make(folder: Path) -> dict[str, Any]:
    """Return the card of the learner in a folder, as values for JSON."""
    info = read(folder)
    state = read_state(folder, Store(folder / FOLDER)).state
    content = {
        "card": SCHEMA,
        "network": {
            "name": info.settings["network"] or "a trunk of your own",
            "options": info.settings["network_options"],
            "image_size": info.settings["size"],
            "first_weights": first_weights(info.settings),
            "weights_sha256": fingerprint({"net": state["net"]}),
        },
        "settings": {
            name: value
            for name, value in info.settings.items()
            if name not in ("network", "network_options", "size")
        },
        "tasks": [
            task_card(task, state.get("classifier"), state.get("secret", "")) for task in info.tasks
        ],
        "drift": [asdict(drift) for drift in info.drift],
        "capacity": {
            "text": str(Capacity(info.room)) if info.room else "no layer learns",
            "layers": [asdict(layer) for layer in info.room],
        },
        "bytes": {name: count for name, count in info.bytes.items() if name != "disk"},
    }
    return {**content, "digest": digest_of(content)}


def task_card(
    task: LearntTask, classifier: Mapping[str, Any] | None, secret: str
) -> dict[str, Any]:
    """Return what the card says about one task."""
    known = asdict(task)
    digests: list[str | None] = [None] * len(task.class_names)
    if classifier is not None and task.numbers:
        digests = [samples_digest(classifier, number, secret) for number in task.numbers]
    classes = zip(task.class_names, task.samples, digests, strict=True)
    return {
        **{name: known[name] for name in ("name", "when", "version", "settings")},
        "balanced_accuracy": task.accuracy,
        "interval": task.interval,
        "without_the_task": task.task_free,
        "classes": [
            {
                "name": name,
                "images": images,
                "recall": task.recalls.get(name),
                "forgotten": name in task.forgotten,
                "images_digest": digest,
            }
            for name, images, digest in classes
        ],
    }


def samples_digest(classifier: Mapping[str, Any], number: int, secret: str) -> str:
    """Return a digest of the images of a class, which only who has the state's key can test."""
    digests: Tensor = classifier["digests"][classifier["classes"] == number]
    content = torch.sort(digests).values.numpy().tobytes()
    return hashlib.blake2b(content, key=bytes.fromhex(secret), digest_size=16).hexdigest()


def first_weights(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return where a network's first weights are from, and their licence."""
    kind = networks.NETWORKS.get(settings["network"] or "")
    if kind is None:
        return {"source": "given with the trunk", "licence": "that of the trunk"}
    source = settings["network_options"].get("weights", kind.Options().weights)
    known = {"random": "none: drawn at random", "imagenet": kind.licence}
    return {"source": source, "licence": known.get(source, "that of the file")}


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a card without its digest."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def check(folder: Path, file: Path) -> None:
    """Refuse a file that is not the card of the learner in a folder, or was edited."""
    try:
        with file.open("rb") as stream:
            card = json.loads(stream.read(LARGEST))
        claimed = card.pop("digest")
        edited = claimed != digest_of(card)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"'{shown(file)}' is no card: give a file of 'card --json'") from None
    if edited:
        raise UserError(f"'{shown(file)}' was edited: its digest is not that of its content")
    now = make(folder)
    if now["digest"] != claimed:
        names = [name for name in now if name != "digest" and now[name] != card.get(name)]
        raise UserError(f"'{shown(file)}' is not the card of this state: {names[0]} differ")


def markdown(card: Mapping[str, Any]) -> str:
    """Return a card as a page to read."""
    network, weights = card["network"], card["network"]["first_weights"]
    lines = [
        "# Card of a classgrad learner",
        "",
        f"- network: {network['name']}, images {network['image_size']} x {network['image_size']}",
        f"- first weights: {weights['source']}; licence: {weights['licence']}",
        f"- weights now: sha256 {network['weights_sha256']}",
        f"- free rank: {card['capacity']['text']}",
        f"- settings: {as_text(card['settings'])}",
        f"- digest of this card: {card['digest']}",
    ]
    for task, drift in zip(card["tasks"], card["drift"], strict=True):
        lines += ["", f"## {task['name']}", ""]
        lines += [f"- learnt: {task['when']}, with classgrad {task['version'] or 'unknown'}"]
        lines += [f"- settings: {as_text(task['settings'])}"] if task["settings"] else []
        lines += accuracy_lines(task)
        bound = drift["bound"]
        moved = f"at most {100 * bound:.2g} %" if bound is not None else "not known"
        reason = f" ({drift['reason']})" if drift["reason"] else ""
        lines += [f"- movement of its features since: {moved}{reason}", ""]
        lines += ["| class | images | recognised | digest of the images |", "|---|---:|---:|---|"]
        for one in task["classes"]:
            recall = "-" if one["recall"] is None else f"{one['recall']:.0f} %"
            name = f"{one['name']} (forgotten)" if one["forgotten"] else one["name"]
            cells = [name.replace("|", "\\|"), str(one["images"]), recall, one["images_digest"]]
            lines.append("| " + " | ".join(cell or "-" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def accuracy_lines(task: Mapping[str, Any]) -> list[str]:
    """Return lines on how often the classes of a task are recognised."""

    def line(what: str, accuracy: float, of: Mapping[str, Any] | None) -> str:
        interval = f" ({of['low']:.1f} to {of['high']:.1f}, {of['samples']} images)" if of else ""
        return f"- balanced accuracy, {what}: {accuracy:.1f} %{interval}"

    lines = []
    if task["balanced_accuracy"] is not None:
        lines.append(line("among its classes", task["balanced_accuracy"], task["interval"]))
    if task["without_the_task"] is not None:
        free = task["without_the_task"]
        lines.append(line("among all classes of then", free["accuracy"], free))
    return lines or ["- accuracy: not measured, too few images"]


def as_text(values: Mapping[str, Any]) -> str:
    """Return settings in one line."""
    parts = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = ", ".join(f"{key}={one}" for key, one in value.items())
            parts.append(f"{name} ({inner})")
        else:
            parts.append(f"{name}={value}")
    return "; ".join(parts)
