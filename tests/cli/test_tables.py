"""The command list: it finds everything it lists, and shows what recipes really use."""

import json

import pytest

from classgrad.cli import tables
from classgrad.defaults import as_json
from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.methods import METHODS
from classgrad.runs import recipes
from classgrad.runs.spec import make_plan
from commands import refused

NAMES = [name for entries in tables.all_tables().values() for name in entries]


@pytest.mark.parametrize("name", [*NAMES, "training", "folder:photos"])
def test_list_finds_everything_it_lists(name):
    found = tables.what_it_has(name)
    assert found
    assert all(all(rows.values()) for rows in found.values())


def test_a_name_of_two_entries_shows_both(call):
    code, out, _ = call("list", "five-datasets")
    assert code == 0
    assert "train_per_class" in out
    assert "experiment five-datasets" in out
    assert "published: ACC 90.94, BWT -1.48" in " ".join(out.replace("│", " ").split())


def test_a_recipe_and_an_experiment_in_a_terminal(call):
    code, out, _ = call("list", "paper")
    assert (code, "layout=scrambled" in out) == (0, True)
    code, out, _ = call("list", "components")
    assert (code, "CGP + BR, released" in out) == (0, True)
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize("name", experiments.names())
def test_an_experiment_has_all_its_lines(name):
    rows = tables.what_it_has(name)[f"experiment {name}"]
    for line in experiments.load(name).lines:
        assert f"method {line.method}" in rows[line.label]


@pytest.mark.parametrize("recipe", recipes.names())
@pytest.mark.parametrize("benchmark", tables.all_tables()["benchmarks"])
def test_values_beside_defaults_are_those_of_a_run(benchmark, recipe):
    loaded = recipes.load(recipe)
    for method in METHODS:
        plan = make_plan(benchmark, method, recipe=recipe)
        shown = tables.settings_in_recipe(method, benchmark, loaded)
        for title, settings in (
            (method, plan.method.model_dump()),
            ("training", plan.training.model_dump()),
            (plan.network, plan.network_options.model_dump()),
            (benchmark, plan.benchmark_options),
        ):
            values = {
                label.partition(" ")[0]: entry.get("value", entry["default"])
                for label, entry in shown.get(title, {}).items()
            }
            left_out = {} if title == method else tables.settings(title)
            defaults = {field: entry["default"] for field, entry in left_out.items()}
            assert {**defaults, **values} == as_json(settings), title


def test_settings_of_training_alone_are_those_of_no_method(call):
    code, out, _ = call("list", "training", "-b", "split-cifar100", "--json")
    shown = json.loads(out)
    assert (code, list(shown)) == (0, ["training", "alexnet5"])
    values = {name: entry.get("value") for name, entry in shown["training"].items()}
    assert (values["epochs"], values["learning_rate"], values["lr_min"]) == (12, 0.01, None)


def test_what_has_no_settings_says_so(call):
    code, out, _ = call("list", "stl")
    assert (code, out) == (0, "stl has no settings\n")
    code, out, _ = call("list", "stl", "-b", "split-digits")
    assert (code, "stl has no settings" in out, "learning_rate" in out) == (0, True, True)


def test_a_value_stands_beside_its_default(call):
    words = ["list", "cgp", "--benchmark", "split-cifar100"]
    code, out, _ = call(*words, "--json")
    shown = json.loads(out)
    assert (code, list(shown)) == (0, ["cgp", "training", "alexnet5"])
    reading = shown["cgp"]["reading"]
    assert (reading["default"], reading["value"]) == ("algorithm", "released")
    assert "value" not in shown["cgp"]["similarity (eta)"]
    assert shown["training"]["learning_rate"]["value"] == 0.01
    code, out, _ = call(*words, "--recipe", "paper")
    assert code == 0
    assert "with recipe paper: network alexnet5" in out
    assert "0.04" in out
    table = out.partition("\n")[2]
    assert max(len(line) for line in table.splitlines()) <= 80


def test_of_a_benchmark_alone_its_options_come_first(call):
    code, out, _ = call("list", "-b", "cifar100-superclass", "--recipe", "paper", "--json")
    shown = json.loads(out)
    assert (code, list(shown)) == (0, ["cifar100-superclass", "training"])
    assert shown["cifar100-superclass"]["layout"]["value"] == "scrambled"


def test_another_network_is_shown_with_the_values_it_would_have(call):
    words = ["-b", "folder:photos", "--json"]
    shown = json.loads(call("list", "resnet18", *words)[1])
    assert shown["resnet18"]["norm"]["value"] == "stored"
    assert shown["training"]["epochs"]["value"] == 20
    assert "value" not in shown.get("folder:photos", {}).get("image_size", {})
    shown = json.loads(call("list", *words)[1])
    assert shown["folder:photos"]["image_size"]["value"] == 128
    assert shown["efficientnet-lite0"]["trainable"]["value"] == 5
    out = call("list", "alexnet5", "-b", "folder:photos")[1]
    assert "network alexnet5" in out
    out = " ".join(call("list", "fast")[1].replace("│", " ").split())
    assert "with efficientnet-lite0: values for ogd; with resnet18: norm=stored" in out


def test_a_recipe_of_your_own_is_shown_too(call, tmp_path):
    text = 'description = "mine"\nnetwork = "mlp"\n[methods.cgp]\neta = 0.8\n'
    (tmp_path / "mine.toml").write_text(text)
    code, out, _ = call("list", "mine.toml")
    assert (code, "network=mlp; values for cgp" in out) == (0, True)
    words = ["--benchmark", "split-digits", "--recipe", "mine.toml", "--json"]
    code, out, _ = call("list", "cgp", *words)
    assert json.loads(out)["cgp"]["similarity (eta)"]["value"] == 0.8


def test_what_a_recipe_inherits_is_shown_too(call, tmp_path):
    (tmp_path / "mine.toml").write_text('inherit = "fast"\n[methods.cgp]\nepsilon = 0.5\n')
    code, out, _ = call("list", "mine.toml")
    assert (code, "inherits" in out, "fast" in out) == (0, True, True)
    words = ["--benchmark", "split-cifar100", "--recipe", "mine.toml", "--json"]
    shown = json.loads(call("list", "cgp", *words)[1])
    assert shown["cgp"]["energy (epsilon)"]["value"] == 0.5  # fast has it by the other name
    assert shown["cgp"]["reading"]["value"] == "released"


WRONG = {
    "no benchmark": (["cgp", "-b", "split-cifar"], "did you mean 'split-cifar100'?"),
    "no path": (["cgp", "-b", "folder"], "unknown benchmark 'folder'"),
    "no method": (["cgpp", "-b", "split-digits"], "did you mean 'cgp'?"),
    "no recipe": (["cgp", "-b", "split-digits", "--recipe", "quick"], "unknown recipe 'quick'"),
    "no network": (["cgp", "-b", "folder:x", "--recipe", "../odd.toml"], "unknown network 'x'"),
    "nothing": (["nothing.toml"], "cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_listed_is_refused(call, tmp_path, case):
    (tmp_path.parent / "odd.toml").write_text('inherit = "fast"\nnetwork = "x"\n')
    words, message = WRONG[case]
    refused(call, ["list", *words], message)


def test_names_that_are_listed_once_are_said_once():
    with pytest.raises(UserError) as caught:
        tables.what_it_has("nothing")
    assert str(caught.value).count("five-datasets") == 1
