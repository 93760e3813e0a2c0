"""The files of one checkpoint: durable when `write` returns, and verified when `read` does.

Its manifest has the size and checksum of each file, the schema version, and a checksum of itself.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from classgrad import __version__
from classgrad.checkpoints.encoding import decode, encode, file_pieces, from_file
from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.errors import UserError
from classgrad.files import sync_folder, write_new


@dataclass(frozen=True)
class Entry:
    """Size and checksum of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is known about a checkpoint before its files are read."""

    schema: int
    code: str  # the version of classgrad that wrote it
    counter: int
    files: dict[str, Entry]

    def to_json(self) -> bytes:
        """Return the content of the manifest's file."""
        content = asdict(self)
        content["sha256"] = _checksum(content)
        # Without a newline at the end, so that a file cut short by any byte is invalid.
        return json.dumps(content, indent=1).encode()


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest in a file.

    Checksum and fields are the same in every schema, so that a newer schema is always recognised,
    and a flipped bit is never taken for one.
    """
    content = parse_json(data)
    if not isinstance(content, dict) or content.pop("sha256", None) != _checksum(content):
        raise BadCheckpoint("its checksum is wrong")
    match content:
        case {"schema": int(schema), "code": str(code), "counter": int(counter), "files": dict()}:
            if schema >= 1:
                return Manifest(schema, code, counter, _entries(content["files"]))
    raise BadCheckpoint("it is incomplete")


def parse_json(data: bytes) -> Any:
    """Parse strict JSON in which no key is repeated."""
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"not JSON ({str(error)[:100]})") from None


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _entries(files: dict[str, Any]) -> dict[str, Entry]:
    entries = {}
    for name, entry in files.items():
        match entry:
            case {"size": int(size), "sha256": str(sha256)}:
                entries[name] = Entry(size, sha256)
            case _:
                raise BadCheckpoint("it is incomplete")
    return entries


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is repeated")
    return content


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


# Raise it whenever the form of a state changes, add a migration below, and keep a checkpoint of the
# old form in the tests, which must stay readable.
SCHEMA_VERSION = 1

# Functions that bring a state to the next version, by the version they start from.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def migrate(state: dict[str, Any], schema: int) -> dict[str, Any]:
    """Bring a state of an older schema to the current one, one version at a time."""
    for version in range(schema, SCHEMA_VERSION):
        state = MIGRATIONS[version](state)
    return state


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
    manifest = Manifest(SCHEMA_VERSION, __version__, counter, entries)
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
    if manifest.schema > SCHEMA_VERSION:
        raise UserError(
            f"'{folder}' has schema {manifest.schema}, newer than {SCHEMA_VERSION}: "
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
    return manifest, migrate(state, manifest.schema)


def fingerprint(state: dict[str, Any]) -> str:
    """Return a hash that only equal states have in common."""
    tree, tensors = encode(state)
    digest = hashlib.sha256(json.dumps(tree).encode())
    for piece in file_pieces(tensors):
        digest.update(piece)
    return digest.hexdigest()


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
