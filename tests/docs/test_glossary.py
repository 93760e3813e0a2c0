"""The glossary has every alias, under its own method, and its words in order."""

import re
from pathlib import Path

from classgrad.methods import METHODS

ROOT = Path(__file__).parents[2]
WORDS, SYMBOLS = (ROOT / "docs" / "glossary.md").read_text().split("## Symbols")


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_alias_is_among_the_symbols_and_no_other():
    listed = set()
    for _, setting, methods, _ in rows(SYMBOLS):
        names = re.findall(r"`(\w+)`", setting)
        if len(names) == 2:
            listed |= {(method, names[1], names[0]) for method in methods.split(", ")}
        else:
            assert all(names[0] in METHODS[method].model_fields for method in methods.split(", "))
    own = {(m.name, alias, name) for m in METHODS.values() for alias, name in m.aliases.items()}
    assert listed == own


def test_words_are_in_order_and_defined_once():
    words = [re.sub(r"[^a-z ]", "", row[0].lower()) for row in rows(WORDS)]
    assert len(words) > 100
    assert words == sorted(set(words))
    assert all(len(row) == 3 and row[1] for row in rows(WORDS))
