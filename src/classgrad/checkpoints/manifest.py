"""The manifest of a checkpoint: size and checksum of its files, and a checksum of itself."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from classgrad.checkpoints.errors import BadCheckpoint


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
