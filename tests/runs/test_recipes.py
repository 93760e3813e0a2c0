import pytest

from classgrad.benchmarks import BENCHMARKS
from classgrad.errors import UserError
from classgrad.methods import METHODS
from classgrad.runs import recipes
from classgrad.runs.spec import make_plan


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_file_of_your_own(tmp_path):
    path = write(
        tmp_path,
        """
description = "mine"
network = "lenet5"
[training]
epochs = 3
[methods.gpm]
energy = 0.9
training = { epochs = 4 }
[benchmarks.split-digits]
network = "mlp"
[benchmarks.split-digits.training]
epochs = 5
""",
    )
    recipe = recipes.load(path)
    assert recipe.name == "mine"
    assert recipe.network_for("split-digits") == "mlp"
    assert recipe.network_for("other") == "lenet5"
    assert recipe.values("training", "other", "cgp") == {"epochs": 3}
    assert recipe.values("training", "other", "gpm") == {"epochs": 4}
    assert recipe.values("training", "split-digits", "gpm") == {"epochs": 5}
    assert recipe.values("method", "other", "gpm") == {"energy": 0.9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml at all", "is not TOML"),
        ("description = 3", "description"),
        ('description = "x"\nsurprise = 1', "surprise"),
        ('description = "x"\ntraining = 5', "training"),
        ('description = "x"\n[methods.cgp]\ntraining = 5', "training of 'cgp' must be a table"),
        ('description = "x"\n"two\\nlines" = 1', "two.nlines"),
        ("a = " + "[" * 10_000, "is not TOML"),
        ("a = " + "9" * 5000, "is not TOML"),
        ("a = 0x" + "f" * 5000, "is not TOML"),
    ],
)
def test_broken_files_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        recipes.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "key"),
    [("training", "self"), ("network_options", "name"), ("methods.cgp", "two\\nlines")],
)
def test_settings_that_there_are_not_are_refused(tmp_path, part, key):
    path = write(tmp_path, f'description = "x"\nnetwork = "mlp"\n[{part}]\n"{key}" = 1')
    with pytest.raises(UserError, match=r"unknown .* 'self'|'name'|two.nlines") as caught:
        make_plan(recipe=path)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused():
    with pytest.raises(UserError, match="cannot be read"):
        recipes.load("/nowhere/none.toml")


def test_values_for_several_methods_at_once(tmp_path):
    path = write(
        tmp_path,
        """
description = "mine"
[methods]
"gpm, cgp" = { energy = 0.9, samples = 5 }
cgp = { energy = 0.8 }
""",
    )
    recipe = recipes.load(path)
    assert recipe.values("method", "other", "gpm") == {"energy": 0.9, "samples": 5}
    assert recipe.values("method", "other", "cgp") == {"energy": 0.8, "samples": 5}
    assert recipe.values("method", "other", "finetune") == {}


@pytest.mark.parametrize("name", recipes.names())
def test_every_method_named_in_a_recipe_is_in_the_table_and_takes_its_values(name):
    """A misspelt method would silently get no values at all."""
    book = recipes.load(name)
    for benchmark, section in [("", book), *book.benchmarks.items()]:
        for key in section.methods:
            for method in key.split(","):
                assert method.strip() in METHODS, (benchmark, key)
    for benchmark in BENCHMARKS:
        for method in METHODS:
            make_plan(benchmark, method, recipe=name)
