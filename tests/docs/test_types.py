"""A type checker of a user's sees what is there: in examples, in the docs, in settings."""

import ast
import keyword
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import classgrad
import classgrad.runs.run  # and with it every class of settings
from classgrad.methods import METHODS
from classgrad.settings import Settings

Said = dict[str, dict[int, list[str]]]

ROOT = Path(__file__).parents[2]
SOURCE = Path(classgrad.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

# What the blocks of a page take for granted. All blocks of a page are read as one file.
LOOP = """
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader
    from classgrad import CGP, GPM, attach
    model: nn.Module
    optimizer: Optimizer
    loss: Tensor
    loader: DataLoader[tuple[Tensor, ...]]
"""
GIVEN = {
    "README.md": LOOP,
    "docs/methods/cgp.md": LOOP,
    "docs/methods/gpm.md": LOOP,
    "docs/own-method.md": """
    from pydantic import Field, PrivateAttr
    from torch import Generator, Tensor
    from classgrad import Method, Task
    from classgrad.methods import Step
    from classgrad.networks import Network
    """,
    "docs/own-models.md": f"""
    {LOOP}
    from typing import Any
    import classgrad
    Trainer: Any; args: Any; first: Any; second: Any
    """,
    "docs/tutorial.md": """
    import json
    import torch
    from classgrad import CGP, Learner, Training, leakage
    from classgrad.learner.drift import Reference
    images: torch.Tensor
    """,
}

# Each line marked as refused is an error, no other line is.
LINES = """
from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import classgrad
from classgrad import CGP, GPM, SGP, Guard, Learner, Method, Prediction, RunRecord, Split
from classgrad import Task, TaskStream, Training, attach, benchmarks, core, leakage, methods
from classgrad import metrics, networks, recipes, register_layer, run
from classgrad import laerner  # refused
from classgrad import ER  # refused

assert_type(CGP(eta=0.8), CGP)
CGP(similarity=0.8)
CGP(epsilon={"*": 0.97, "fc1": 0.99}, samples=50, mu=1)
CGP(etta=0.8)  # refused
CGP(eta="much")  # refused
CGP(0.8)  # refused
CGP(reading="mine")  # refused
CGP().eta  # refused
GPM()
GPM(eta=0.8)  # refused
SGP(alpha=10, epsilon=0.9)
methods.Finetune()
methods.Finetune(energy=0.9)  # refused
methods.ER(memory=100)
assert_type(methods.make("cgp", eta=0.8), Method)
assert_type(CGP().replace(eta=0.9), CGP)
Training(epochs=3)
Training(epoch=3)  # refused
Training(optimizer="lion")  # refused


class Own(CGP):
    strength: float = 1.0


Own(strength=2, eta=0.8)
Own(strenth=2)  # refused

learner = Learner(nn.Linear(4, 8), CGP(), training=Training(epochs=3))
Learner.laod  # refused
assert_type(Learner.load("state"), Learner)
inputs, labels = torch.zeros(8, 4), torch.arange(8) % 2
learner.learn("tensors", (inputs, labels), classes=["even", "odd"])
learner.learn("names", (inputs, ["even", "odd"] * 4))
learner.learn("folder", Path("pictures"), checkpoint_dir="state")
learner.learn("dataset", TensorDataset(inputs, labels))
learner.learn("split", Split(inputs, labels), keep_in="state")  # refused
assert_type(learner.predict(inputs), list[Prediction])
learner.predict("picture.png", task="folder")
learner.predict([Path("one.png"), Path("two.png")])
learner.predict(3)  # refused
assert_type(leakage(learner, learner.reference(inputs, "tensors")).mean, float)

stream = benchmarks.split_digits(seed=1, tasks=5)
assert_type(stream, TaskStream)
assert_type(stream[0], Task)
assert_type(stream[1:], tuple[Task, ...])
assert_type([task for task in stream], list[Task])
assert_type(stream.test(0), Split)
stream.tests(0)  # refused
assert_type(benchmarks.load("permuted-digits"), TaskStream)
assert_type(benchmarks.folder(Path("pictures")), TaskStream)

record = run(stream, CGP(), seed=2, out="runs")
assert_type(record, RunRecord)
assert_type(run("split-digits", "gpm", values={"epochs": 3}), RunRecord)
run(stream, CGP)  # refused
assert_type(record.average_accuracy, float | None)
assert_type(RunRecord.load(Path("record.json")), RunRecord)
assert_type(metrics.backward_transfer(torch.zeros(2, 2)), float | None)
assert_type(recipes.load("fast").network_for("split-digits"), str | None)

net = networks.build("mlp", (1, 8, 8), width=50)
assert_type(net, networks.Network)
assert_type(net(inputs, 0), Tensor)
net(inputs)  # refused

model = nn.Linear(4, 2)
guard = attach(model, GPM())
assert_type(guard, Guard)
attach(model, methods.ER())  # refused
with guard.step(torch.optim.Adam(model.parameters())):
    pass
guard.end_task([(inputs, labels)], forward=model)
guard.end_task(DataLoader(TensorDataset(inputs, labels)))
assert_type(guard.layer_ranks(), list[methods.LayerRank])


class OwnLinear(nn.Linear):
    pass


class OwnKind(core.LayerKind[OwnLinear]):
    pass


register_layer(OwnLinear, OwnKind())
register_layer(nn.Conv2d, OwnKind())  # refused
assert_type(classgrad.__version__, str)
"""


def page_file(path: Path) -> str | None:
    """Return the Python blocks of a page as one file with the page's numbers of lines."""
    page = path.read_text(encoding="utf-8")
    lines = [""] * len(page.splitlines())
    for block in re.finditer(r"^( *)```python\n(.*?)^\1```", page, re.DOTALL | re.MULTILINE):
        start = page[: block.start(2)].count("\n")
        code = dedent(block[2]).splitlines()
        lines[start : start + len(code)] = code
    if not any(lines):
        return None
    given = GIVEN.get(path.relative_to(ROOT).as_posix(), "").splitlines()
    given = [line.strip() for line in given if line.strip()]
    first = next(number for number, line in enumerate(lines) if line)
    assert len(given) <= first, f"{path}: no room above the first block for what is given"
    return "\n".join([*given, *lines[len(given) :]]) + "\n"


def settings() -> list[type[Settings]]:
    """Every class of settings in the package."""
    actual, left = [], [Settings]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("classgrad."):
            actual.append(kind)
    assert set(METHODS.values()) < set(actual)
    return actual


def revealed(kinds: list[type[Settings]]) -> str:
    """Return a file that asks for the arguments of each class, one a line."""
    lines = []
    for kind in kinds:
        outer, _, inner = f"{kind.__qualname__}.__init__".partition(".")
        lines.append(f"from {kind.__module__} import {outer}; reveal_type({outer}.{inner})\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What mypy has to say, by file and line, of all that is tested here, in one run."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "lines.py").write_text(LINES)
    (folder / "arguments.py").write_text(revealed(settings()))
    names = {"lines.py": "lines", "arguments.py": "arguments"}
    for page in PAGES:
        text = page_file(page)
        if text is not None:
            shown = page.relative_to(ROOT).as_posix()
            name = f"page_{re.sub(r'[^a-z]', '_', shown.lower())}.py"
            (folder / name).write_text(text)
            names[name] = shown
    examples = sorted(ROOT.glob("examples/*.py"))
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
        *("--cache-dir", str(ROOT / ".mypy_cache" / "users")),
        "--follow-imports=silent",  # as for an installed package: its own errors are not a user's
        "--untyped-calls-exclude=torch",  # Tensor.backward has no types
        *map(str, [*examples, *(folder / name for name in names)]),
    ]
    result = subprocess.run(
        command, cwd=folder, env={**os.environ, "MYPYPATH": str(SOURCE)}, capture_output=True
    )
    assert not result.stderr, result.stderr.decode()
    said: Said = {name: {} for name in names.values()}
    said |= {path.relative_to(ROOT).as_posix(): {} for path in examples}
    for line in result.stdout.decode().splitlines():
        path, number, message = line.split(":", 2)
        file = names.get(Path(path).name) or (folder / path).resolve().relative_to(ROOT).as_posix()
        said[file].setdefault(int(number), []).append(message.strip())
    return said


@pytest.mark.docs
def test_examples_and_blocks_of_the_docs_pass(seen: Said) -> None:
    pages = [name for name in seen if name.endswith(".md")]
    assert "README.md" in pages
    assert len(pages) > 5
    assert len([name for name in seen if name.startswith("examples/")]) > 5
    ours = ("lines", "arguments")
    assert {name: said for name, said in seen.items() if said and name not in ours} == {}


@pytest.mark.docs
def test_mistakes_are_errors_and_nothing_else_is(seen: Said) -> None:
    lines = LINES.splitlines()
    refused = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert refused
    errors = {
        number: said
        for number, said in seen["lines"].items()
        if any(message.startswith("error") for message in said)
    }
    wrong = {lines[number - 1]: said for number, said in errors.items() if number not in refused}
    assert wrong == {}
    assert [lines[number - 1] for number in sorted(refused - errors.keys())] == []


@pytest.mark.docs
def test_arguments_of_settings_are_their_fields_and_aliases(
    seen: Said,
) -> None:
    for number, kind in enumerate(settings(), 1):
        (said,) = seen["arguments"][number]
        types = dict(re.findall(r"(\w+): ([^=]+) =(?=[,)])", said.partition("*, ")[2]))
        assert types.keys() == {name for name in kind.names() if not keyword.iskeyword(name)}, said
        for alias, field in kind.aliases.items():
            assert types.get(alias, types[field]) == types[field], said


def test_names_for_type_checkers_are_those_that_can_be_imported() -> None:
    tree = ast.parse(Path(classgrad.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lazy = {name: f"classgrad.{home}.{name}" for name, home in classgrad._HOMES.items()}
    lazy |= {name: f"classgrad.{home}" for name, home in classgrad._MODULES.items()}
    assert typed == lazy
    assert sorted(classgrad.__all__) == sorted([*lazy, "__version__"])
    for name in classgrad.__all__:
        assert getattr(classgrad, name) is not None
