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
FLAG = re.compile(r"(^|[\s'\"])--[a-z]|classgrad (data|run|learn|predict|info)\b")


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
    given |= {
        described.hint.partition(":")[0] for described in data.DATASETS.values() if described.hint
    }
    assert given == set(HINTS)


@pytest.mark.parametrize("path", sorted(Path(data.__file__).parent.glob("*.py")), ids=str)
def test_data_name_no_flag_and_no_command(path):
    tree = without_docstrings(ast.parse(path.read_text()))
    assert [text for text in texts(tree) if FLAG.search(text)] == []


@pytest.mark.parametrize("text", ["or pass --skip-bad", "fetch it: classgrad data fetch mnist"])
def test_flags_and_commands_are_noticed(text):
    assert FLAG.search(text)


def test_without_its_command_a_missing_dataset_still_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"fetch it with classgrad\.data\.fetch$") as caught:
        data.load("mnist", tmp_path)
    assert error_message(caught.value).endswith(" (classgrad data fetch mnist)")
