"""Sentences with their labels, in tables and folders."""

import json
from functools import partial
from pathlib import Path

from classgrad.learner.sentences import SentenceInputs
from fuzz.target import Strategy, Target
from fuzz.trees import as_json, changed

ROWS = [("Où est l'hôtel?", "travel"), ('say "hello", please', "talk"), ("我怎么转账", "banking")]
KIND = SentenceInputs(64)


def _make(ending: str, folder: Path) -> Path:
    path = folder / f"given{ending}"
    if ending == ".jsonl":
        lines = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    else:
        quote = '"{}"'.format
        doubled = [(text.replace('"', '""'), label) for text, label in ROWS]
        between = "\t" if ending == ".tsv" else ","
        lines = ["text,label".replace(",", between)]
        lines += [between.join([quote(text), label]) for text, label in doubled]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _make_folder(folder: Path) -> Path:
    for text, label in ROWS:
        (folder / f"{label}.txt").write_text(f"{text}\n{text} again\n", encoding="utf-8")
    return folder / "talk.txt"


def _read(ending: str, folder: Path) -> None:
    """Read it as training data, and the sentences alone as what is to be predicted."""
    path = folder / f"given{ending}" if ending else folder
    given = KIND.read_classes(path)
    assert given.inputs.shape == (len(given.labels), 64)
    assert set(given.labels.tolist()) == set(range(len(given.class_names)))
    KIND.read(path if ending else folder / "talk.txt")


def _changed_lines(sound: bytes) -> Strategy:
    rows = [{"text": text, "label": label} for text, label in ROWS]
    return changed({"rows": rows}).map(_as_lines)


def _as_lines(tree: object) -> bytes:
    rows = tree.get("rows") if isinstance(tree, dict) else tree
    rows = rows if isinstance(rows, list) else [rows]
    return b"\n".join(map(as_json, rows))


TARGETS = (
    Target("sentences, csv", partial(_make, ".csv"), partial(_read, ".csv")),
    Target("sentences, tsv", partial(_make, ".tsv"), partial(_read, ".tsv")),
    Target("sentences, jsonl", partial(_make, ".jsonl"), partial(_read, ".jsonl"), _changed_lines),
    Target("sentences, folder", _make_folder, partial(_read, "")),
)
