"""The card of a learner: what it knows, from what, how well, made with what; and a digest of it.

A card is made of what is in the state and of nothing else, so a state has one card, whoever makes
it and whenever. Who signs the digest has signed classes, data, settings, figures, and every number
that predictions are made from: weights, class statistics, prototypes, what the method remembers.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
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
from classgrad.learner.kinds import named_kind
from classgrad.learner.learner import KEYED, read_state
from classgrad.learner.learnt import LearntTask
from classgrad.methods.projection.forecast import Capacity

# Raise it whenever the form of a card changes. Cards are filed for years: `make` still has to make
# those of older schemas, and a stored card of each is in the tests.
SCHEMA = 2
NOT_COVERED = {  # what a card of an older schema says nothing about, although answers depend on it
    1: "class statistics, prototypes, calibration and the method's memory",
}
# Parts of a state by their name in a card. Of the rest, settings are in the card, and the probe is
# measured anew by whoever saves.
PARTS = {
    "weights": "net",
    "class_statistics": "classifier",
    "prototypes": "prototypes",
    "memory": "memory",
    "movement": "movement",
}
DESCRIPTION = ("input_shape", "embedding", "dimensions", "secret", "valid_fraction")
OF_TASK = ("name", "class_names", "samples", "sharpness", "ranks", "data", "forgotten", "numbers")
LARGEST = 50_000_000  # bytes of a file that is compared


def make(folder: Path, schema: int = SCHEMA) -> dict[str, Any]:
    """Return the card of the learner in a folder, as values for JSON; or as older versions did."""
    info = read(folder)
    state = read_state(folder, Store(folder / FOLDER)).state
    content: dict[str, Any] = {
        "card": schema,
        "network": {
            "name": info.settings["network"] or "a trunk of your own",
            "options": info.settings["network_options"],
            "image_size": info.settings["size"],
            "first_weights": first_weights(info.settings),
        },
        "settings": {
            name: value
            for name, value in info.settings.items()
            if name not in ("network", "network_options", "size")
        },
        "tasks": [
            task_card(task, state.get("classifier"), key_of(state, info.tasks))
            for task in info.tasks
        ],
        "drift": [asdict(drift) for drift in info.drift],
        "capacity": {
            "text": str(Capacity(info.free_rank)) if info.free_rank else "no layer learns",
            "layers": [asdict(layer) for layer in info.free_rank],
        },
        "bytes": {name: count for name, count in info.bytes.items() if name != "disk"},
    }
    if schema == 1:
        content["network"]["weights_sha256"] = fingerprint({"net": state["net"]})
        for task in content["tasks"]:
            del task["images_digest"]
    else:
        content["contents"] = contents(state, info.tasks)
    return {**content, "digest": digest_of(content)}


def contents(state: Mapping[str, Any], tasks: Sequence[LearntTask]) -> dict[str, str | None]:
    """Return a sha256 of each part of a state, and one over them; None of parts it does not have.

    >>> list(contents({}, []))
    ['sha256', 'weights', 'class_statistics', 'prototypes', 'memory', 'movement', 'description']
    """
    parts = {
        name: tree_digest(state[key]).hex() if state.get(key) else None
        for name, key in PARTS.items()
    }
    description = {
        **{name: state.get(name) or None for name in DESCRIPTION},
        "tasks": [{name: getattr(task, name) for name in OF_TASK} for task in tasks],
    }
    parts["description"] = tree_digest(description).hex()
    return {"sha256": tree_digest(parts).hex(), **parts}


def tree_digest(value: Any) -> bytes:
    """Return a sha256 of nested values, whatever the order of keys and the strides of tensors.

    Each value is hashed with its type, and a list or dict is hashed from the digests of what is in
    it, so that different values cannot give the same bytes.

    >>> tree_digest({"a": [1], "b": 2.0}) == tree_digest({"b": 2.0, "a": (1,)})
    True
    >>> tree_digest([[1], 2]) == tree_digest([1, [2]])
    False
    """
    match value:
        case Tensor():
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest = hashlib.sha256(f"tensor {value.dtype} {list(value.shape)} ".encode())
            digest.update(content.numpy().data)
            return digest.digest()
        case Mapping():
            pairs = sorted((tree_digest(key), tree_digest(one)) for key, one in value.items())
            return hashlib.sha256(b"dict " + b"".join(key + one for key, one in pairs)).digest()
        case list() | tuple():
            return hashlib.sha256(b"list " + b"".join(map(tree_digest, value))).digest()
    return hashlib.sha256(f"{type(value).__name__} {value!r}".encode()).digest()


def key_of(state: Mapping[str, Any], tasks: Sequence[LearntTask]) -> bytes:
    """Return the key of digests of images: that of a state, or where it has none, made as one is.

    A state without class statistics has no key of its own; what it was made from is in every state.
    """
    if state.get("secret"):
        return bytes.fromhex(state["secret"])
    first = tasks[0].data if tasks else ""
    return hashlib.blake2b(f"{first} {state['seed']}".encode(), digest_size=32).digest()


def task_card(task: LearntTask, classifier: Mapping[str, Any] | None, key: bytes) -> dict[str, Any]:
    """Return what the card says about one task."""
    known = asdict(task)
    digests: list[str | None] = [None] * len(task.class_names)
    if classifier is not None and task.numbers:
        digests = [samples_digest(classifier, number, key) for number in task.numbers]
    classes = zip(task.class_names, task.samples, digests, strict=True)
    return {
        **{name: known[name] for name in ("name", "when", "version", "settings")},
        # Of single images only class statistics have digests; without them, one of all is known.
        "images_digest": None if any(digests) or not task.data else data_digest(task.data, key),
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


def samples_digest(classifier: Mapping[str, Any], number: int, key: bytes) -> str:
    """Return a digest of the images of a class, which only who has the state's key can test."""
    digests: Tensor = classifier["digests"][classifier["classes"] == number]
    return keyed(torch.sort(digests).values.numpy().tobytes(), key)


def data_digest(data: str, key: bytes) -> str:
    """Return the digest of the data of a task; earlier versions stored it without the key."""
    return data.removeprefix(KEYED) if data.startswith(KEYED) else keyed(data.encode(), key)


def keyed(content: bytes, key: bytes) -> str:
    """Return a digest that only who has the key can compute."""
    return hashlib.blake2b(content, key=key, digest_size=16).hexdigest()


def first_weights(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return where a network's first weights are from, and their licence."""
    kind = networks.NETWORKS.get(settings["network"] or "")
    if kind is None:
        return {"source": "given with the trunk", "licence": "that of the trunk"}
    source = settings["network_options"].get("weights", kind.Options().weights)
    known = {
        "random": "none: drawn at random",
        "imagenet": kind.licence,
        "pretrained": kind.licence,
    }
    return {"source": source, "licence": known.get(source, "that of the file")}


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a card without its digest."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def check(folder: Path, file: Path) -> str:
    """Refuse a file that is not the card of the learner in a folder, or was edited.

    Return what a card of an older schema does not cover, or nothing.
    """
    try:
        with file.open("rb") as stream:
            card = json.loads(stream.read(LARGEST))
        claimed, schema = card.pop("digest"), card.get("card")
        edited = claimed != digest_of(card)
        known = type(schema) is int and schema >= 1
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        edited = known = False
    if edited:
        raise UserError(f"'{shown(file)}' was edited: its digest is not that of its content")
    if not known:
        raise UserError(f"'{shown(file)}' is no card: give the JSON of one", hint="card")
    if schema > SCHEMA:
        raise UserError(
            f"'{shown(file)}' has schema {schema}, newer than {SCHEMA}: update classgrad"
        )
    now = json.loads(json.dumps(make(folder, schema)))  # tuples are lists in a file
    if now.pop("digest") != claimed:
        names = differing(now, card)
        raise UserError(f"'{shown(file)}' is not the card of this state: {', '.join(names)} differ")
    return NOT_COVERED.get(schema, "")


def differing(now: Mapping[str, Any], card: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs between two cards; of the contents, each part's."""

    def names(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
        return [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]

    found, parts = names(now, card), card.get("contents")
    if "contents" in found and "contents" in now and isinstance(parts, dict):
        found.remove("contents")
        found += [name for name in names(now["contents"], parts) if name != "sha256"]
    return [shown(name.replace("_", " ")) for name in found] or ["contents"]


def markdown(card: Mapping[str, Any]) -> str:
    """Return a card as a page to read."""
    network, weights = card["network"], card["network"]["first_weights"]
    kind = named_kind(network["name"])
    lines = [
        "# Card of a classgrad learner",
        "",
        f"- network: {network['name']}, {kind.size_text(network['image_size'])}",
        f"- first weights: {weights['source']}; licence: {weights['licence']}",
        f"- free rank: {card['capacity']['text']}",
        f"- settings: {as_text(card['settings'])}",
        "- contents, sha256 of each part:",
        *(
            f"  - {name.replace('_', ' ')}: {digest or 'none'}"
            for name, digest in card["contents"].items()
            if name != "sha256"
        ),
        f"- sha256 of all contents: {card['contents']['sha256']}",
        f"- digest of this card: {card['digest']}",
    ]
    for task, drift in zip(card["tasks"], card["drift"], strict=True):
        lines += ["", f"## {task['name']}", ""]
        lines += [f"- learnt: {task['when']}, with classgrad {task['version'] or 'unknown'}"]
        lines += [f"- settings: {as_text(task['settings'])}"] if task["settings"] else []
        lines += accuracy_lines(task, kind.several)
        if task["images_digest"] is not None:
            lines.append(f"- digest of all its {kind.several}: {task['images_digest']}")
        bound = drift["bound"]
        moved = f"at most {100 * bound:.2g} %" if bound is not None else "not known"
        reason = f" ({drift['reason']})" if drift["reason"] else ""
        lines += [f"- movement of its features since: {moved}{reason}", ""]
        lines.append(f"| class | {kind.several} | recognised | digest of the {kind.several} |")
        lines.append("|---|---:|---:|---|")
        for one in task["classes"]:
            recall = "-" if one["recall"] is None else f"{one['recall']:.0f} %"
            name = f"{one['name']} (forgotten)" if one["forgotten"] else one["name"]
            cells = [name.replace("|", "\\|"), str(one["images"]), recall, one["images_digest"]]
            lines.append("| " + " | ".join(cell or "-" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def accuracy_lines(task: Mapping[str, Any], several: str) -> list[str]:
    """Return lines on how often the classes of a task are recognised."""

    def line(what: str, accuracy: float, of: Mapping[str, Any] | None) -> str:
        interval = (
            f" ({of['low']:.1f} to {of['high']:.1f}, {of['samples']} {several})" if of else ""
        )
        return f"- balanced accuracy, {what}: {accuracy:.1f} %{interval}"

    lines = []
    if task["balanced_accuracy"] is not None:
        lines.append(line("among its classes", task["balanced_accuracy"], task["interval"]))
    if task["without_the_task"] is not None:
        free = task["without_the_task"]
        lines.append(line("among all classes of then", free["accuracy"], free))
    return lines or [f"- accuracy: not measured, too few {several}"]


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
