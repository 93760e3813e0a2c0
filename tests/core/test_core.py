"""Gradient projection knows no method, network or process: it needs torch and the errors."""

import ast
from pathlib import Path

import pytest

from classgrad import core

FILES = sorted(Path(core.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    """Name the modules that a file imports, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_core_imports_nothing_else_of_ours(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0] == "classgrad"}
    assert ours or path.stem == "linalg"
    assert {n for n in ours if n.split(".")[1:2] not in (["core"], ["errors"])} == set()


def test_what_is_public_can_be_imported() -> None:
    assert all(hasattr(core, name) for name in core.__all__)
