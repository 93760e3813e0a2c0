"""Every hop of the walks in CONTRIBUTING.md is a function where the page says it is."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
WALKS = PAGE.split("## A stranger's walk")[1].split("\n## ")[0]


def defined(path):
    """Functions, and methods as Class.method, of a source file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{x.name}" for x in node.body if hasattr(x, "name"))


def test_every_hop_is_where_the_page_says_and_no_walk_is_long():
    tables = WALKS.split("| | where | what happens |")[1:]
    walks = [re.findall(r"^\| (\d+) \| (.*?) \|", table, re.M) for table in tables]
    assert len(walks) == 4
    for walk in walks:
        assert [int(number) for number, _ in walk] == list(range(1, len(walk) + 1))
        assert len(walk) <= 15
        for _, where in walk:
            for place in where.split("; "):
                file, names = place.split(": ")
                known = set(defined(ROOT / "src" / "classgrad" / file.strip("`")))
                assert set(re.findall(r"`([\w.]+)`", names)) <= known, place


def test_every_path_that_is_named_exists():
    for path in re.findall(r"`((?:src|tests)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists(), path
