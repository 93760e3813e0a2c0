"""Edits of the text of recipes: one line changes, comments and order stay."""

import tomllib

import pytest

from classgrad.errors import UserError
from classgrad.runs.recipes.edit import set_value, set_values, toml

TEXT = """\
# A recipe.
description = "mine"  # whose?

[benchmarks.digits.methods]
# All of them.
"gpm,cgp" = { energy = 0.98 }  # shared
sgp = { scale = 30.0, names = { "a,b" = "x # y" }, training = { epochs = 2 } }
ewc.strength = 3  # dotted

# The next one.
[benchmarks.digits.methods.er]
memory = 10

[benchmarks.other]
network = "mlp"
"""


def edited(keys, value, text=TEXT):
    """Return the lines that an edit adds, after checking what it does not change."""
    new = set_value(text, keys, value, "why")
    old_lines, new_lines = text.splitlines(), new.splitlines()
    lines = iter(new_lines)
    gone = [line for line in old_lines if line not in new_lines]
    assert len(gone) <= 1
    assert all(line in lines for line in old_lines if line not in gone)  # in the same order
    return [line for line in new_lines if line not in old_lines], new_lines


METHODS = ("benchmarks", "digits", "methods")


@pytest.mark.parametrize(
    ("keys", "value", "line"),
    [
        (
            (*METHODS, "sgp", "scale"),
            5,
            'sgp = { scale = 5, names = { "a,b" = "x # y" }, training = { epochs = 2 } }  # why',
        ),
        (
            (*METHODS, "sgp", "training", "epochs"),
            7,
            'sgp = { scale = 30.0, names = { "a,b" = "x # y" }, training = { epochs = 7 } }  # why',
        ),
        (
            (*METHODS, "sgp", "rule"),
            "a",
            'sgp = { scale = 30.0, names = { "a,b" = "x # y" }, training = { epochs = 2 }, '
            'rule = "a" }  # why',
        ),
        ((*METHODS, "ewc", "strength"), 1e-05, "ewc.strength = 1e-05  # dotted; why"),
        ((*METHODS, "gpm", "energy"), 0.9, "gpm = { energy = 0.9 }  # why"),
        ((*METHODS, "er", "memory"), 20, "memory = 20  # why"),
        ((*METHODS, "er", "training", "epochs"), 3, "training = { epochs = 3 }  # why"),
    ],
)
def test_one_line_changes_or_is_added(keys, value, line):
    assert edited(keys, value)[0] == [line]


def test_a_line_is_added_at_the_end_of_its_table_before_the_next_comment():
    lines = edited((*METHODS, "gpm", "energy"), 0.9)[1]
    assert lines[lines.index("gpm = { energy = 0.9 }  # why") + 1 :][:2] == ["", "# The next one."]


def test_a_table_is_added_for_a_benchmark_that_has_none():
    new = ["[benchmarks.other.methods]", "gpm = { energy = 0.9 }  # why"]
    added, lines = edited(("benchmarks", "other", "methods", "gpm", "energy"), 0.9)
    assert added == new
    assert lines[-4:] == ['network = "mlp"', "", *new]
    assert edited(("benchmarks", "third", "methods", "gpm", "energy"), 0.9)[0] == [
        "[benchmarks.third.methods]",
        new[1],
    ]


def test_another_choice_replaces_the_remark_of_the_first_and_keeps_the_rest():
    text = "[benchmarks.d.methods]\ngpm = { energy = 0.5, samples = 3 }  # released code; see b\n"
    for file, energy in (("a.json", 0.6), ("b.json", 0.7)):
        text = set_values(text, "d", "gpm", {("energy",): energy}, file)
    assert text.splitlines()[1] == (
        "gpm = { energy = 0.7, samples = 3 }  # released code; see b; tuned: b.json"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[benchmarks.d.methods]\ngpm = 3\n",
        "[benchmarks.d.methods.gpm]\nenergy = [\n 1, # one\n 2,\n]\n",
        '[benchmarks.d.methods.gpm]\nenergy = """a"""\n',
        "[[benchmarks.d.methods]]\ngpm = 3\n",
        "benchmarks = { d = 3 }\n",
        "not toml\n",
    ],
)
def test_what_cannot_be_edited_safely_is_refused_in_one_line(text):
    with pytest.raises(UserError, match="cannot be put into the recipe: ") as caught:
        set_value(text, ("benchmarks", "d", "methods", "gpm", "energy"), 0.9, "why")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [True, 3, -0.5, 1e-300, 'a"b\\c\n# é', [1, [2.5, "x"]], {"fc*": {"a b": [False]}}, {}]
)
def test_values_come_back_as_they_were(value):
    assert tomllib.loads(f"key = {toml(value)}")["key"] == value
