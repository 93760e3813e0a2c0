"""The rooms of the package: which may import which, that no modules import each other."""

import ast
from functools import cache
from pathlib import Path

import classgrad

ROOT = Path(classgrad.__file__).parent

# A module imports from its own room and from lower rows, not from other rooms of its row.
ROWS = [
    {"errors"},
    {"devices", "files", "seeds", "settings", "tasks", "toml_files"},
    {"defaults"},
    {"core", "data"},
    {"benchmarks", "networks"},
    {"distributed"},
    {"checkpoints"},
    {"prediction"},
    {"methods"},
    {"training"},
    {"guard", "learner", "runs"},
    {"experiments", "integrations", "report"},
    {"cli"},
]
ROW = {room: number for number, row in enumerate(ROWS) for room in row}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name, without `classgrad.`."""
    result = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return result


@cache
def imports(name: str) -> frozenset[str]:
    """What a module imports of the package, wherever it does: in functions and for types, too."""
    result = set()
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.partition(".")[0] == "classgrad":
                home = node.module.removeprefix("classgrad").removeprefix(".")
                for alias in node.names:
                    inside = f"{home}.{alias.name}" if home else alias.name
                    result.add(inside if inside in modules() else home)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            result |= {one.removeprefix("classgrad.") for one in names if "classgrad." in one}
    return frozenset(result - {""})


def room(name: str) -> str:
    return name.partition(".")[0]


def test_every_module_is_in_a_room():
    rooms = {room(name) for name in modules()} - {"", "__main__"}
    assert rooms == ROW.keys()
    top = [name for name in modules() if "." not in name and not (ROOT / name).is_dir()]
    assert len([name for name in top if name not in ("", "__main__")]) <= 10


def test_layers_point_one_way():
    wrong = [
        f"{name} imports {other}"
        for name in modules()
        if name not in ("", "__main__")
        for other in sorted(imports(name))
        if room(other) != room(name) and ROW[room(other)] >= ROW[room(name)]
    ]
    assert wrong == []


def test_the_core_knows_nothing_but_errors():
    outside = {
        (name, other)
        for name in modules()
        if room(name) == "core"
        for other in imports(name)
        if room(other) not in ("core", "errors")
    }
    assert outside == set()


def test_few_modules_know_that_there_can_be_several_processes():
    knowing = [
        name
        for name in modules()
        if room(name) != "distributed" and any(room(o) == "distributed" for o in imports(name))
    ]
    assert "training.loop" in knowing
    assert len(knowing) <= 8, knowing
    assert not [name for name in knowing if room(name) in ("core", "networks")]
    for name, path in modules().items():
        if room(name) != "distributed":
            assert "torch.distributed" not in path.read_text(encoding="utf-8"), name


def test_no_modules_import_each_other():
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    edges = {name: imports(name) - packages for name in modules() if name not in packages}
    state: dict[str, str] = {}

    def visit(name: str, path: list[str]) -> None:
        if state.get(name) == "done":
            return
        assert state.get(name) != "open", " imports ".join([*path[path.index(name) :], name])
        state[name] = "open"
        for other in sorted(edges.get(name, ())):
            visit(other, [*path, name])
        state[name] = "done"

    for name in sorted(edges):
        visit(name, [])


def test_what_reads_imports_sees_them():
    assert "core.projector" in imports("methods.projection.base")
    assert "runs.run" in imports("cli.run")  # inside a function
