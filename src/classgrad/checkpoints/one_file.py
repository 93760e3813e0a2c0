"""A state in one file: safetensors, with the tree of the state in its metadata.

Any program that reads safetensors can read the tensors.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from classgrad import __version__
from classgrad.checkpoints.encoding import decode, encode, file_pieces, from_file
from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.checkpoints.files import parse_json
from classgrad.errors import UserError
from classgrad.files import write_atomic, write_new


def write(path: Path, state: dict[str, Any], schema: int, *, by_place: bool = False) -> None:
    """Write a state durably; a file of that name is replaced, or stays intact if that fails.

    For `by_place` see `encode`.
    """
    tree, tensors = encode(state, by_place=by_place)
    content = {"schema": schema, "code": __version__, "state": tree}
    digest = hashlib.sha256()
    for piece in list(file_pieces(tensors))[1:]:  # all but the header
        digest.update(piece)
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    digest.update(text.encode())
    header = {"classgrad": text, "sha256": digest.hexdigest()}

    def write_part(part: Path) -> None:
        part.unlink()
        write_new(part, file_pieces(tensors, header))

    try:
        write_atomic(path, write_part)
    except OSError as error:
        raise UserError(f"cannot save to '{path}': {error.strerror}") from None


def read(path: Path, newest: int, what: str) -> dict[str, Any]:
    """Return the state in a file; whatever is wrong with it is a UserError.

    `newest` is the schema that is known, `what` the file should hold.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file '{path}'") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from None
    try:
        tensors = from_file(content)
        length = int.from_bytes(content[:8], "little")
        metadata = parse_json(content[8 : 8 + length])["__metadata__"]
        text, checksum = metadata["classgrad"], metadata["sha256"]
        digest = hashlib.sha256(content[8 + length :])
        digest.update(text.encode())
        if digest.hexdigest() != checksum:
            raise BadCheckpoint("its checksum is wrong")
        whole = parse_json(text.encode())
        schema = whole["schema"]
        if type(schema) is int and schema > newest:
            raise UserError(
                f"'{path}' has schema {schema}, newer than {newest}: update classgrad, from "
                f"{__version__} to at least {whole['code']!r}"
            )
        state = decode(whole["state"], tensors)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"'{path}' is damaged, or holds no {what}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise BadCheckpoint(f"'{path}' holds no {what}") from None
    if not isinstance(state, dict):
        raise BadCheckpoint(f"'{path}' holds no {what}")
    return state
