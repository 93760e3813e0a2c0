"""CLINC150 (S. Larson et al., EMNLP-IJCNLP 2019): sentences of 150 intents in ten domains.

Of each intent there are 100 sentences for training, 20 for validation and 30 for testing, besides
sentences that have none of the intents.
"""

import json
from pathlib import Path
from typing import Any

import torch

from classgrad.data.datasets import Dataset, Images, Source, damaged, missing
from classgrad.data.sentences import as_bytes, is_empty

FILES = ("data_full.json", "domains.json")
# Lists of sentences in the file, by split; those for validation follow those for training.
PARTS = {"train": ("train", "val"), "test": ("test",)}
NO_INTENT = {"train": ("oos_train", "oos_val"), "test": ("oos_test",)}


def find(root: Path, data: Dataset, split: str) -> list[Path]:
    """Return the files, which are the same for all splits."""
    paths = [root / data.folder / name for name in FILES]
    for path in paths:
        if not path.exists():
            raise missing(data, path)
    return paths


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the bytes of the sentences of a split; domains are coarse classes."""
    (path, content), (domains_path, domains_content) = sources
    sentences = _parse(data, path, content)
    domains = _parse(data, domains_path, domains_content)
    names = {name: number for number, name in enumerate(_all_intents(data, domains_path, domains))}
    pairs = [pair for part in PARTS[split] for pair in _pairs(data, path, sentences, part)]
    unknown = next((intent for _, intent in pairs if intent not in names), None)
    if unknown is not None:
        raise damaged(data, path, f"intent '{unknown[:40]}' is in none of the domains")
    domain_of = [number for number, group in enumerate(domains.values()) for _ in group]
    labels = [names[intent] for _, intent in pairs]
    return Images(
        as_bytes([text for text, _ in pairs], data.shape[0]),
        torch.tensor(labels),
        tuple(names),
        torch.tensor([domain_of[label] for label in labels]),
        tuple(domains),
    )


def without_intent(path: Path, data: Dataset, content: bytes, split: str) -> list[str]:
    """Return the sentences of a split that have none of the intents."""
    sentences = _parse(data, path, content)
    return [text for part in NO_INTENT[split] for text, _ in _pairs(data, path, sentences, part)]


def _parse(data: Dataset, path: Path, content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise damaged(data, path, "not a table in JSON")
    return parsed


def _all_intents(data: Dataset, path: Path, domains: dict[str, Any]) -> list[str]:
    groups = list(domains.values())
    if not all(isinstance(group, list) and group for group in groups):
        raise damaged(data, path, "a domain is not a list of intents")
    intents = [intent for group in groups for intent in group]
    if not all(isinstance(intent, str) for intent in intents) or not intents:
        raise damaged(data, path, "an intent is not text")
    if len(set(intents)) < len(intents):
        raise damaged(data, path, "an intent is in two domains")
    return intents


def _pairs(data: Dataset, path: Path, table: dict[str, Any], part: str) -> list[tuple[str, str]]:
    """Return the sentences of a part with their intents."""
    rows = table.get(part)
    if not isinstance(rows, list) or not rows:
        raise damaged(data, path, f"no sentences of '{part}'")
    for row in rows:
        good = isinstance(row, list) and len(row) == 2 and all(isinstance(x, str) for x in row)
        if not good or is_empty(row[0]):
            raise damaged(data, path, f"a row of '{part}' is not a sentence and its intent")
    return [(text, intent) for text, intent in rows]
