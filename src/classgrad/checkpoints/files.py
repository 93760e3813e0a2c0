"""The files of one checkpoint: durable when `write` returns, and verified when `read` does."""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from classgrad import __version__
from classgrad.checkpoints import schema
from classgrad.checkpoints.encoding import decode, encode
from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.checkpoints.manifest import Entry, Manifest, parse_json, parse_manifest
from classgrad.checkpoints.tensors import file_pieces, from_file
from classgrad.errors import UserError
from classgrad.files import sync_folder, write_new

STATE, TENSORS, MANIFEST = "state.json", "tensors.safetensors", "manifest.json"
LARGEST_MANIFEST = 2**16
PIECE = 2**20


def write(folder: Path, counter: int, state: dict[str, Any]) -> None:
    """Write a checkpoint into a folder that does not exist yet."""
    tree, tensors = encode(state)
    text = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    folder.mkdir()
    entries = {
        STATE: _write_file(folder / STATE, [text]),
        TENSORS: _write_file(folder / TENSORS, file_pieces(tensors)),
    }
    manifest = Manifest(schema.SCHEMA_VERSION, __version__, counter, entries)
    _write_file(folder / MANIFEST, [manifest.to_json()])
    sync_folder(folder)


def read(folder: Path, counter: int) -> tuple[Manifest, dict[str, Any]]:
    """Return a checkpoint's manifest and its state, migrated to the current schema.

    Any damage raises a BadCheckpoint that names the file.
    """
    with _naming(MANIFEST):
        manifest = parse_manifest(_read_file(folder / MANIFEST, most=LARGEST_MANIFEST))
        if manifest.counter != counter:
            raise BadCheckpoint(f"it belongs to checkpoint {manifest.counter}")
    if manifest.schema > schema.SCHEMA_VERSION:
        raise UserError(
            f"'{folder}' has schema {manifest.schema}, newer than {schema.SCHEMA_VERSION}: "
            f"update classgrad, from {__version__} to at least {manifest.code!r}"
        )
    with _naming(STATE):
        tree = parse_json(_verified(folder / STATE, manifest))
    with _naming(TENSORS):
        tensors = from_file(_verified(folder / TENSORS, manifest))
    with _naming(STATE):
        state = decode(tree, tensors)
        if not isinstance(state, dict):
            raise BadCheckpoint("the state is not a dict")
    return manifest, schema.migrate(state, manifest.schema)


def _write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> Entry:
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterator[bytes | memoryview]:
        nonlocal size
        for piece in pieces:
            # In small pieces, so that a piece is still in the CPU's cache when it is written.
            for start in range(0, len(piece), PIECE):
                part = piece[start : start + PIECE]
                digest.update(part)
                yield part
            size += len(piece)

    write_new(path, hashed())
    return Entry(size, digest.hexdigest())


def _verified(path: Path, manifest: Manifest) -> bytes:
    if path.name not in manifest.files:
        raise BadCheckpoint("not in the manifest")
    wanted = manifest.files[path.name]
    if path.is_file() and path.stat().st_size != wanted.size:
        raise BadCheckpoint(f"{path.stat().st_size} bytes instead of {wanted.size}")
    content = _read_file(path, most=wanted.size)
    if hashlib.sha256(content).hexdigest() != wanted.sha256:
        raise BadCheckpoint("its checksum is wrong")
    return content


def _read_file(path: Path, most: int) -> bytes:
    if not path.is_file():
        raise BadCheckpoint("missing")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise BadCheckpoint(f"{size} bytes, more than {most}")
        return file.read()


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the damaged file of the checkpoint in the message of an error."""
    try:
        yield
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{name}: {error}") from None
    except OSError as error:
        # A failing disk is damage; missing permissions are not, because the user can change them.
        if error.errno != errno.EIO:
            raise
        raise BadCheckpoint(f"{name}: {error.strerror}") from None
