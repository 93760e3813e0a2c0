import itertools
from pathlib import Path

import pytest

from classgrad import CGP
from classgrad.benchmarks import BENCHMARKS, split_digits
from classgrad.errors import UserError
from classgrad.methods import METHODS
from classgrad.networks import NETWORKS
from classgrad.runs.recipes import names
from classgrad.runs.spec import make_plan
from classgrad.training.config import Training
from streams import blobs


def test_values_go_where_they_belong():
    plan = make_plan(values={"eta": 0.9, "epochs": 2, "width": 32, "tasks": 3})
    assert plan.method.similarity == 0.9
    assert plan.training.epochs == 2
    assert plan.network_options.width == 32
    assert plan.benchmark_options["tasks"] == 3


def test_no_name_belongs_to_two_owners():
    for case in itertools.product(METHODS, NETWORKS, BENCHMARKS):
        method, network, benchmark = case
        parts = [
            METHODS[method],
            Training,
            NETWORKS[network].Options,
            BENCHMARKS[benchmark].Options,
        ]
        every = [name for part in parts for name in part.names()]
        assert len(every) == len(set(every)), case


def test_every_recipe_resolves_for_every_method_and_benchmark():
    for case in itertools.product(names(), METHODS, BENCHMARKS):
        recipe, method, benchmark = case
        try:
            plan = make_plan(benchmark, method, recipe=recipe)
        except UserError as error:
            pytest.fail(f"{case}: {error}")
        assert plan.recipe == recipe, case


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"benchmark": "permuted-digit"}, "did you mean 'permuted-digits'?"),
        ({"method": "cgpp"}, "did you mean 'cgp'?"),
        ({"network": "alexnet"}, "did you mean 'alexnet5'?"),
        ({"recipe": "fats"}, "did you mean 'fast'?"),
        ({"values": {"etta": 1}}, "did you mean 'eta'?"),
        ({"values": {"eta": 1.5}}, "eta must be less than or equal to 1"),
        ({"values": {"eta": -1.5}}, "eta must be greater than or equal to -1"),
        ({"values": {"epsilon": 0}}, "epsilon"),
        ({"values": {"epsilon": 1.01}}, "epsilon"),
        ({"values": {"lambda": -0.1}}, "lambda must be greater than or equal to 0"),
        ({"values": {"mu": 0}}, "mu must be greater than 0"),
        ({"values": {"epochs": 0}}, "epochs must be greater than or equal to 1"),
        ({"method": CGP}, "the class CGP is not a method: give CGP()"),
        ({"method": 3}, "3 is not a method: give an object such as CGP()"),
        ({"benchmark": list(blobs())}, "benchmark takes a name or a TaskStream (got a list)"),
        ({"training": {"epochs": 3}}, "training takes an object such as Training(epochs=3) (got"),
        ({"recipe": Path("mine.toml")}, "recipe takes a name, or the path of a .toml file"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
    ],
)
def test_wrong_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(UserError) as caught:
        make_plan(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_recipe_fills_in_what_a_method_made_already_leaves_to_its_defaults():
    recipe = make_plan("permuted-digits", "cgp").method
    assert recipe.energy_step != CGP().energy_step
    plan = make_plan("permuted-digits", CGP(energy=0.5))
    assert plan.method.energy == 0.5
    assert plan.method.energy_step == recipe.energy_step
    plan = make_plan("permuted-digits", CGP(energy_step=CGP().energy_step))
    assert plan.method.energy_step == CGP().energy_step
    assert make_plan(blobs(), CGP()).benchmark == "blobs"


def test_a_stream_made_already_keeps_its_options_in_the_plan():
    plans = [make_plan(split_digits(tasks=tasks), "gpm") for tasks in (2, 5)]
    assert [plan.benchmark_options["tasks"] for plan in plans] == [2, 5]
    assert plans[0].folder_name() != plans[1].folder_name()


def test_folder_names_differ_when_any_value_does():
    plans = [
        make_plan(),
        make_plan(seed=2),
        make_plan(values={"eta": 0.71}),
        make_plan(values={"epochs": 3}),
        make_plan(values={"width": 16}),
        make_plan(values={"tasks": 2}),
        make_plan(method="gpm"),
    ]
    assert len({plan.folder_name() for plan in plans}) == len(plans)
    assert make_plan().folder_name() == make_plan().folder_name()


def test_values_by_layer_of_a_recipe_are_for_its_own_network_only():
    assert isinstance(make_plan("split-cifar100", "gpm").method.samples, dict)
    other = make_plan("split-cifar100", "gpm", network="resnet18")
    assert other.method.samples == 125
    assert other.method.energy == 0.97


def test_by_layer_values():
    plan = make_plan(values={"energy": {"fc1": 0.9, "*": 0.99}, "samples": {"fc*": 20}})
    assert plan.method.energy == {"fc1": 0.9, "*": 0.99}
