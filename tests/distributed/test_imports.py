"""How many modules know that there can be more than one process."""

import ast
from pathlib import Path

import classgrad

SOURCE = Path(classgrad.__file__).parent
MOST = 8

# Not counted yet: what these do with several processes is being moved elsewhere.
MOVING = (
    "classgrad.core",
    "classgrad.methods.projection.shrinking",
    "classgrad.runs.parallel",
    "classgrad.runs.state",
)


def modules():
    """Yield the name and the path of every module."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def imported(text):
    """Return the names of all that a module imports, wherever in it the import is."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def within(name, package):
    return name == package or name.startswith(f"{package}.")


def knowing(package):
    """Return the modules outside a package that import anything of it."""
    return [
        name
        for name, path in modules()
        if not within(name, package)
        and any(within(one, package) for one in imported(path.read_text(encoding="utf-8")))
    ]


def test_an_import_is_found_in_any_form():
    words = ("import classgrad.distributed", "from classgrad import distributed")
    words += (
        "from classgrad.distributed.world import World",
        "if x:\n def f():\n  import a.b, a.c",
    )
    found = [imported(text) for text in words]
    assert all(any(within(one, "classgrad.distributed") for one in names) for names in found[:3])
    assert found[3] == {"a.b", "a.c"}


def test_few_modules_know_of_several_processes():
    found = [
        name
        for name in knowing("classgrad.distributed")
        if not any(within(name, one) for one in MOVING)
    ]
    assert "classgrad.training.loop" in found
    assert len(found) <= MOST, found


def test_networks_and_families_of_methods_do_not():
    found = knowing("classgrad.distributed")
    assert [name for name in found if within(name, "classgrad.networks")] == []
    allowed = {"classgrad.methods.base", "classgrad.methods.projection.base", *MOVING}
    assert {name for name in found if within(name, "classgrad.methods")} <= allowed


def test_torch_distributed_is_used_in_one_place():
    assert knowing("torch.distributed") == [
        "classgrad.distributed",
        "classgrad.distributed.speaker",
        "classgrad.distributed.world",
    ]
