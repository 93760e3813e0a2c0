"""Decoded images kept as safetensors files, found again by the content of their sources.

An entry is used only if its key, made of the checksums of all source files, is the one wanted and
its own content still has the checksums it was written with; otherwise it counts as not there.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from classgrad.data.files import sha256, write_atomic
from classgrad.data.images import Content, Images, checksums
from classgrad.data.table import Dataset

# To be raised whenever a decoder changes what it returns.
VERSION = 1


def key(data: Dataset, split: str, root: Path, digests: dict[Path, str]) -> str:
    """Return what identifies decoded images: version, names and sha256 of their sources."""
    listed = [[os.path.relpath(path, root), digest] for path, digest in digests.items()]
    return sha256(json.dumps([VERSION, data.name, data.shape, split, listed]).encode())


def recall(root: Path, data: Dataset, split: str, wanted: str) -> tuple[Images, Content] | None:
    """Return the images kept under the key `wanted`, or None."""
    for folder in _folders(root):
        path = folder / f"{data.name}-{split}-{wanted[:32]}.safetensors"
        if os.path.isfile(path) and (found := _open(path, wanted)):
            return found
    return None


def keep(
    root: Path, data: Dataset, split: str, wanted: str, images: Images, held: Content
) -> Path | None:
    """Write images under the key `wanted` in place of older ones; return where, or None.

    A folder that cannot be written to is no error: the images are decoded again next time.
    """
    from safetensors.torch import save_file

    tensors = {"images": images.images, "labels": images.labels}
    if images.coarse is not None:
        tensors["coarse"] = images.coarse
    about = {
        "key": wanted,
        "content": held,
        "class_names": images.class_names,
        "coarse_names": images.coarse_names,
        "seal": _seal(wanted, held, images),
    }
    for folder in _folders(root):
        path = folder / f"{data.name}-{split}-{wanted[:32]}.safetensors"
        try:
            write_atomic(path, lambda part: save_file(tensors, part, {"about": json.dumps(about)}))
            for other in folder.glob(f"{data.name}-{split}-*.safetensors"):
                if other != path:
                    other.unlink(missing_ok=True)
        except OSError:
            continue
        return path
    return None


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders for entries: beside the data, and the user's own where that is closed."""
    beside = root / ".cache"
    yield beside
    if not os.access(beside if os.path.exists(beside) else root, os.W_OK | os.X_OK):
        yield user_folder() / "decoded"


def user_folder() -> Path:
    """Return the user's folder for things that can be made again."""
    import pooch

    return Path(pooch.os_cache("classgrad"))


def _seal(key: str, held: Content, images: Images) -> str:
    """Return the checksum of what `held` leaves out: names, and labels in full length."""
    said = json.dumps([key, held, images.class_names, images.coarse_names]).encode()
    labels = [part for part in (images.labels, images.coarse) if part is not None]
    return sha256(b"".join([said, *(part.numpy().tobytes() for part in labels)]))


def _open(path: Path, wanted: str) -> tuple[Images, Content] | None:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            # Copies: the tensors would otherwise change or vanish with the file.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        images = Images(
            tensors["images"],
            tensors["labels"],
            tuple(about["class_names"]),
            tensors.get("coarse"),
            tuple(about["coarse_names"]),
        )
        written = Content(*about["content"])
        sound = (
            about["key"] == wanted
            and images.images.dtype == torch.uint8
            and images.images.ndim == 4
            and images.labels.dtype == torch.int64
            and images.labels.shape == images.images.shape[:1]
            and checksums(images) == written
            and _seal(wanted, written, images) == about["seal"]
        )
    except Exception:  # whatever is wrong with an entry, it can be made again
        return None
    return (images, written) if sound else None
