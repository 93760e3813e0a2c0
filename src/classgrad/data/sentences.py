"""Sentences as tensors: the bytes of their UTF-8, so that they go wherever images go."""

import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from classgrad.errors import UserError, shown

LENGTH = 512  # bytes of a sentence, by default
LARGEST = 512 * 2**20  # bytes of a file
TEXT, LABEL = "text", "label"  # columns


def as_bytes(sentences: Sequence[str], length: int = LENGTH) -> Tensor:
    """Return the bytes of sentences as uint8 (n, length), with zeros after the end.

    What comes after `length` bytes is left out, never a part of a character.

    >>> as_bytes(["hé"], 4).tolist(), as_bytes(["éé"], 3).tolist()
    ([[104, 195, 169, 0]], [[195, 169, 0]])
    """
    rows = np.zeros((len(sentences), length), dtype=np.uint8)
    for row, sentence in zip(rows, sentences, strict=True):
        if not isinstance(sentence, str):
            raise UserError(f"a sentence has to be text (got {shown(repr(sentence))})")
        if is_empty(sentence):
            raise UserError("a sentence is empty: leave it out")
        content = sentence.replace("\0", " ").encode("utf-8", errors="replace")[:length]
        content = content.decode("utf-8", errors="ignore").encode()
        row[: len(content)] = np.frombuffer(content, dtype=np.uint8)
    return torch.from_numpy(rows)


def as_text(content: Tensor) -> list[str]:
    """Return the sentences whose bytes these are, as uint8 or as floats in [0, 1].

    >>> as_text(as_bytes(["hello"]).float() / 255)
    ['hello']
    """
    if content.is_floating_point():
        content = (content * 255).round().to(torch.uint8)
    rows = content.cpu().numpy()
    return [row.tobytes().rstrip(b"\0").decode("utf-8", errors="replace") for row in rows]


def is_empty(sentence: str) -> bool:
    """Tell whether a sentence has nothing but spaces and control characters."""
    return not any(
        unicodedata.category(char)[0] not in "CZ" and char != "\ufffd" for char in sentence
    )


def read_labelled(path: Path) -> tuple[list[str], list[str]]:
    """Return sentences and their labels, as `read_rows` does; refuse empty sentences."""
    rows = read_rows(path)
    for place, text, _ in rows:
        if is_empty(text):
            raise UserError(f"{place}: the sentence is empty; leave it out")
    return [text for _, text, _ in rows], [label for _, _, label in rows]


# What a row is called in messages, its sentence, and its label.
Row = tuple[str, str, str]
Rows = Iterator[Row]


def read_rows(path: Path) -> list[Row]:
    """Return where each sentence is, the sentence, which may be empty, and its label.

    A file is a table with the columns text and label, .csv or .tsv, or .jsonl with a table in each
    line. A folder has a .txt for each class, with a sentence in each line.
    """
    rows = [(place, text, label.strip()) for place, text, label in _rows(path)]
    if not rows:
        raise UserError(f"'{shown(path)}' holds no sentence")
    for place, _, label in rows:
        if is_empty(label):
            raise UserError(f"{place}: the label is empty; name the class")
        try:
            label.encode()
        except UnicodeEncodeError:  # JSON can have half a character, which cannot be printed
            raise UserError(f"{place}: the label {shown(label)} is not Unicode") from None
    return rows


def read_sentences(path: Path) -> list[str]:
    """Return the sentences of a file: a line each, or the column text of a table.

    Lines of nothing but spaces are left out.
    """
    if path.suffix in READERS:
        texts = [text for _, text, _ in READERS[path.suffix](path, ())]
    else:
        texts = [text for _, text in _lines(path)]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(f"'{shown(path)}' holds no sentence")
    return texts


def _rows(path: Path) -> Rows:
    if path.is_dir():
        return _from_folder(path)
    if path.suffix not in READERS:
        raise UserError(
            f"'{shown(path)}' is none of {', '.join(READERS)}, nor a folder with a .txt for each "
            "class: give one of these"
        )
    return READERS[path.suffix](path, (LABEL,))


def _from_folder(path: Path) -> Rows:
    files = sorted(file for file in path.iterdir() if file.suffix == ".txt")
    if not files:
        raise UserError(f"'{shown(path)}' has no .txt: give a file for each class")
    for file in files:
        for place, line in _lines(file):
            if line.strip():
                yield place, line, file.stem


def _from_table(path: Path, needed: Sequence[str]) -> Rows:
    separator = "\t" if path.suffix == ".tsv" else ","
    reader = csv.DictReader(io.StringIO(_read(path), newline=""), delimiter=separator, strict=True)
    try:
        names = reader.fieldnames or []
        _refuse_missing(path, names, needed)
        for row in reader:
            place = f"'{shown(path)}', line {reader.line_num}"
            if row.get(TEXT) is None or any(row.get(name) is None for name in needed):
                raise UserError(f"{place}: there are fewer columns than in the first line")
            if None in row:  # most often a comma in a sentence, and the rest of it would be a label
                raise UserError(
                    f"{place}: there are more columns than in the first line; put text with a "
                    'separator in it into quotes: "yes, please"'
                )
            yield place, row[TEXT], row.get(LABEL) or ""
    except csv.Error as error:
        what = str(error)  # names the separator, which may be a tab
        if "expected after" in what:
            what = 'text after a closing quote; a quote in a sentence is written twice, ""'
        raise UserError(f"'{shown(path)}', after line {reader.line_num}: {what}") from None


def _from_lines(path: Path, needed: Sequence[str]) -> Rows:
    for place, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UserError(f"{place} is not a table in JSON")
        _refuse_missing(place, row, needed)
        text, label = row[TEXT], row.get(LABEL, "")
        if not isinstance(text, str) or not isinstance(label, str):
            raise UserError(f"{place}: {TEXT} and {LABEL} have to be text")
        yield place, text.encode("utf-8", errors="replace").decode(), label


READERS = {".csv": _from_table, ".tsv": _from_table, ".jsonl": _from_lines}


def _refuse_missing(where: Path | str, names: object, needed: Sequence[str]) -> None:
    known = list(names) if isinstance(names, list | dict) else []
    twice = next((name for name in (TEXT, *needed) if known.count(name) > 1), None)
    if twice is not None:
        place = f"'{shown(where)}'" if isinstance(where, Path) else where
        raise UserError(f"{place} has several columns '{twice}': rename all but one")
    missing = next((name for name in (TEXT, *needed) if name not in known), None)
    if missing is not None:
        place = f"'{shown(where)}'" if isinstance(where, Path) else where
        found = ", ".join(f"'{shown(name)}'" for name in known) or "nothing"
        raise UserError(f"{place} has no column '{missing}', but {found}: name the column so")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_read(path).split("\n"), start=1):
        yield f"'{shown(path)}', line {number}", line.removesuffix("\r")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"'{shown(path)}' has more than {LARGEST:,} bytes: give it in parts")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"'{shown(path)}' is not UTF-8 (byte {error.start:,}): save it in that encoding"
        ) from None
    except OSError as error:
        raise UserError(f"'{shown(path)}' cannot be read: {error.strerror}") from None
