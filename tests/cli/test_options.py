"""Advice of the library in the words of the command line."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from classgrad import cli, data
from classgrad.checkpoints import BadCheckpoint
from classgrad.cli.options import HINTS, error_message, resumed_without_fresh, with_hint
from classgrad.errors import Stopped, UserError

SOURCES = Path(cli.__file__).parents[1]
COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands]
FLAG = re.compile(rf"(^|[\s'\"])--[a-z]|classgrad ({'|'.join(COMMANDS)}|data)\b")
# They make command lines: two of `classgrad run`, one of git.
COMMAND_LINES = ("experiments/executors/local.py", "report/page/tables.py", "runs/commit.py")


def texts(tree):
    """All strings of a module but docstrings, parts of f-strings too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def without_docstrings(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def test_a_hint_is_said_behind_the_message():
    assert (
        error_message(UserError("no file", hint="fetch:mnist"))
        == "no file (classgrad data fetch mnist)"
    )
    assert error_message(UserError("no picture", hint="skip_bad")) == "no picture (--skip-bad)"
    assert error_message(BadCheckpoint("damaged")) == "damaged"
    assert with_hint("none", None) == "none"


def test_a_hint_is_no_part_of_the_message_and_goes_to_other_processes():
    error = pickle.loads(pickle.dumps(UserError("no file", hint="fetch:mnist")))
    assert (str(error), error.hint) == ("no file", "fetch:mnist")


@pytest.mark.parametrize("fresh", [False, True])
def test_a_command_that_started_afresh_is_resumed_without_that_flag(fresh):
    def raised(error):
        with pytest.raises(type(error)) as caught, resumed_without_fresh(fresh):
            raise error
        return HINTS[caught.value.hint]

    command = "the same command without --fresh" if fresh else "the same command"
    assert raised(Stopped(15)) == f"{command} resumes it"
    assert raised(UserError("a process is gone", hint="resume")) == f"{command} resumes it"
    assert raised(UserError("no picture", hint="skip_bad")) == "--skip-bad"


def test_every_hint_that_is_given_has_words():
    files = [path.read_text() for path in SOURCES.rglob("*.py") if path.name != "errors.py"]
    given = {name for text in files for name in re.findall(r'hint ?= ?f?"(\w+)', text)}
    given |= {"other_folder"}  # said in place of another
    given |= {
        described.hint.partition(":")[0] for described in data.DATASETS.values() if described.hint
    }
    assert given == set(HINTS)


def test_the_library_names_no_flag_and_no_command():
    named = [
        f"{name}: {text}"
        for path in sorted(SOURCES.rglob("*.py"))
        if (name := path.relative_to(SOURCES).as_posix()) not in COMMAND_LINES
        and not name.startswith("cli/")
        for text in texts(without_docstrings(ast.parse(path.read_text())))
        if FLAG.search(text) and "pip install --" not in text
    ]
    assert named == []


@pytest.mark.parametrize(
    "text",
    ["or pass --skip-bad", "fetch it: classgrad data fetch mnist", "give a file of 'card --json'"],
)
def test_flags_and_commands_are_noticed(text):
    tree = ast.parse(f"raise UserError(f{text!r})")
    assert [one for one in texts(tree) if FLAG.search(one)] == [text]


def test_without_its_command_a_missing_dataset_still_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"fetch it with classgrad\.data\.fetch$") as caught:
        data.load("mnist", tmp_path)
    assert error_message(caught.value).endswith(" (classgrad data fetch mnist)")
