import re

import pytest

from classgrad import networks
from classgrad.benchmarks import BENCHMARKS
from classgrad.errors import UserError
from classgrad.learner.kinds import NETWORK
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


INHERITING = """
inherit = "fast"
[training]
epochs = 2
[methods.cgp]
eta = 0.9
[benchmarks.split-cifar100.methods]
cgp = { epsilon = 0.9, training = { learning_rate = 0.5 } }
"""


def test_a_file_needs_only_what_differs_from_what_it_inherits(tmp_path):
    path = write(tmp_path, INHERITING)
    for benchmark in BENCHMARKS:
        for method in ("cgp", "den"):
            fast = make_plan(benchmark, method).as_dict()
            mine = make_plan(benchmark, method, recipe=path).as_dict()
            assert mine["training"].pop("epochs") == 2  # although fast has another for each
            assert mine.pop("recipe") == "mine"
            fast["training"].pop("epochs")
            fast.pop("recipe")
            if method == "cgp":
                assert mine["method"].pop("similarity") == 0.9
                assert fast["method"].pop("similarity") == 0.7
                if benchmark == "split-cifar100":  # by its alias, where fast has the name
                    assert (mine["method"].pop("energy"), fast["method"].pop("energy")) == (
                        0.9,
                        0.97,
                    )
                    assert mine["training"].pop("learning_rate") == 0.5
                    fast["training"].pop("learning_rate")
            assert mine == fast


def test_another_network_inherits_nothing_that_is_for_one(tmp_path):
    path = write(tmp_path, 'inherit = "fast"\n[benchmarks.split-cifar100]\nnetwork = "resnet18"\n')
    plan = make_plan("split-cifar100", "cgp", recipe=path)
    assert (plan.network, plan.network_options.affine) == ("resnet18", "first")  # fast: task
    assert plan.method.samples == 125  # fast: by layer name
    assert (plan.method.reading, plan.training.epochs) == ("released", 12)
    assert make_plan("five-datasets", "cgp", recipe=path).method.samples["conv1"] == 10
    own = write(tmp_path, 'inherit = "fast"\nnetwork = "lenet5"\n')
    assert recipes.load(own).network_for("split-cifar100") == "lenet5"


def test_files_inherit_files_from_their_own_folder(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    base = tmp_path / "base.toml"
    base.write_text('inherit = "paper"\n[training]\nepochs = 3\nbatch_size = 7\n')
    (tmp_path / "deep" / "mine.toml").write_text(
        'inherit = "../base.toml"\n[training]\nepochs = 4\n'
    )
    monkeypatch.chdir(tmp_path / "deep")
    for name in ("mine.toml", str(tmp_path / "deep" / "mine.toml")):
        training = make_plan("split-cifar100", "gpm", recipe=name).training
        assert (training.epochs, training.batch_size, training.learning_rate) == (4, 7, 0.01)
        assert training.schedule == "plateau"


def test_without_inheriting_a_file_stands_alone(tmp_path):
    path = write(tmp_path, 'network = "mlp"\n')
    plan = make_plan("split-digits", "cgp", recipe=path)
    assert (plan.training.epochs, plan.training.momentum) == (10, 0.0)  # the defaults
    with pytest.raises(UserError, match="give one, or let the recipe inherit one"):
        make_plan("split-digits", "cgp", recipe=write(tmp_path, ""))


@pytest.mark.parametrize(
    ("inherit", "message"),
    [
        ("fasst", "unknown recipe 'fasst': did you mean 'fast'?"),
        ("mine.toml", "mine.toml' inherits itself"),
        ("./x/../mine.toml", "mine.toml' inherits itself"),
        ("other.toml", "mine.toml' inherits itself"),
        ("nowhere.toml", "nowhere.toml' cannot be read"),
        ("a\\u0000b.toml", "cannot be read"),
        ("a\\nb.toml", "cannot be read"),
    ],
)
def test_what_cannot_be_inherited_is_refused(tmp_path, inherit, message):
    (tmp_path / "other.toml").write_text('inherit = "mine.toml"')
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        recipes.load(write(tmp_path, f'inherit = "{inherit}"'))
    assert "\n" not in str(caught.value)


def test_what_comes_with_the_package_inherits_nothing():
    """Their values, and with them the identity of runs, are in one file each."""
    assert [recipes.load(name).inherit for name in recipes.names()] == [None, None]


@pytest.mark.parametrize("benchmark", ["split-cifar100", "cifar100-superclass", "five-datasets"])
def test_paper_makes_the_copies_of_the_released_code(benchmark):
    method = make_plan(benchmark, "cgp", recipe="paper").method
    assert (method.operations, method.severity) == ("all", 1)
    assert method.copy_crop
    assert method.copy_flip
    assert (method.similarity, method.contrast) == (0.7, 0.1)  # the paper's


def test_fast_makes_copies_by_the_defaults():
    method = make_plan("split-cifar100", "cgp").method
    assert (method.operations, method.severity) == ("augmix", 3)
    assert not method.copy_crop
    assert not method.copy_flip


@pytest.mark.parametrize("recipe", recipes.names())
@pytest.mark.parametrize(("benchmark", "mu"), [("five-datasets", 0.07), ("split-cifar100", 0.5)])
def test_the_temperature_is_that_of_the_released_code(recipe, benchmark, mu):
    assert make_plan(benchmark, "cgp", recipe=recipe).method.temperature == mu


def test_folders_have_the_network_that_learners_have():
    plan = make_plan("folder:photos", "cgp")
    assert plan.network == NETWORK["images"]
    assert plan.network_options.trainable == networks.NETWORKS[NETWORK["images"]].last_blocks
    assert plan.benchmark_options["image_size"] == plan.network_options.size
    assert make_plan("folder:photos", "ogd").method.max_vectors == 100


@pytest.mark.parametrize(
    ("method", "recipe", "name"),
    [
        ("cgp", "fast", "folder-cgp-seed1-0c227b48"),
        ("owm", "fast", "folder-owm-seed1-75ba7c05"),
        ("ogd", "fast", "folder-ogd-seed1-009da17a"),
        ("cgp", "paper", "folder-cgp-seed1-6610c1bc"),
    ],
)
def test_runs_of_folders_with_the_former_network_are_found(method, recipe, name):
    """They are the same runs, with all their values, once the network is named."""
    plan = make_plan("folder:photos", method, recipe=recipe, network="resnet18")
    former = make_plan("folder:photos", method, recipe=recipe) if recipe == "paper" else plan
    assert (former.folder_name(), former.network_options.norm) == (name, "stored")
    assert former.training.epochs == (200 if recipe == "paper" else 20)
    assert former.benchmark_options["image_size"] == 32


def test_values_for_a_certain_network_hold_with_that_one_only(tmp_path):
    text = """
network = "mlp"
[network_options]
width = 7
[methods.cgp]
samples = { fc1 = 3, "*" = 4 }
energy = 0.9
[networks.lenet5.network_options]
heads = "shared"
[benchmarks.split-digits.networks.lenet5.methods.cgp]
samples = 5
training = { epochs = 6 }
"""
    path = write(tmp_path, text)
    usual = make_plan("split-digits", "cgp", recipe=path)
    assert (usual.network_options.width, usual.training.epochs) == (7, 10)
    recipe = recipes.load(path)
    other = {"benchmark": "split-digits", "method": "cgp", "network": "lenet5"}
    assert recipe.values("network_options", **other) == {"heads": "shared"}
    assert recipe.values("method", **other) == {"energy": 0.9, "samples": 5}
    assert recipe.values("training", **other) == {"epochs": 6}
    third = {**other, "network": "alexnet5"}
    assert recipe.values("network_options", **third) == {}
    assert recipe.values("method", **third) == {"energy": 0.9}


def test_values_for_a_network_are_inherited(tmp_path):
    path = write(tmp_path, 'inherit = "fast"\n[benchmarks.folder]\nnetwork = "resnet18"\n')
    plan = make_plan("folder:photos", "owm", recipe=path)
    assert (plan.network_options.norm, plan.method.damping["*"]) == ("stored", 0.01)
    plan = make_plan("folder:photos", "owm", recipe=path, network=NETWORK["images"])
    assert plan.network_options.trainable == 5
