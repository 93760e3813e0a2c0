"""Runs are named by what tells them apart, or by the lines of experiments that they belong to."""

import pytest

from classgrad.experiments import spec as experiments
from classgrad.report.lines import Budget, ExperimentLine
from classgrad.report.names import experiments_of, names
from classgrad.report.records import grouped, stream_titles
from classgrad.runs.plain import first_identity
from classgrad.runs.record import RunRecord
from pages import record as made


def record(method="gpm", seed=1, benchmark="permuted-digits", **settings):
    training = {"epochs": settings.pop("epochs", 10), "learning_rate": settings.pop("rate", 0.1)}
    network = settings.pop("network", "mlp")
    return RunRecord.model_construct(
        benchmark=benchmark,
        benchmark_options=settings.pop("options", {}),
        method={"name": method, **settings},
        training=training,
        network=network,
        network_options={},
        recipe="fast",
        seed=seed,
        defaults=1,
    )


def test_runs_of_one_method_are_named_by_all_settings_that_differ():
    runs = [record(energy=0.9, b=1), record(energy=0.95, b=1), record("cgp", energy=0.9)]
    assert names(runs) == ["gpm energy=0.9", "gpm energy=0.95", "cgp"]


@pytest.mark.parametrize("budget", [{"epochs": 1}, {"network": "lenet5"}])
def test_every_name_has_the_budget_if_it_differs_anywhere(budget):
    ((setting, value),) = budget.items()
    usual = {"epochs": 10, "network": "mlp"}[setting]
    runs = [record(**budget), record("cgp"), record("sgp"), record("owm")]
    assert names(runs) == [
        f"gpm {setting}={value}",
        *(f"{name} {setting}={usual}" for name in ("cgp", "sgp", "owm")),
    ]


def test_a_budget_is_compared_on_one_stream():
    assert names([record(epochs=1), record("cgp", benchmark="others")]) == ["gpm", "cgp"]


def test_rates_of_other_methods_are_not_shown():
    assert names([record(rate=0.1), record("cgp", rate=0.2)]) == ["gpm", "cgp"]


def test_a_setting_that_a_run_lacks_is_told_from_one_that_is_null():
    runs = [record("mine"), record("mine", x=None), record("mine", x=2)]
    assert names(runs) == ["mine x=unset", "mine x=none", "mine x=2"]
    assert len(grouped(runs)) == 3
    streams = [record(options={}), record(options={"x": None})]
    assert stream_titles(streams) == ["permuted-digits", "permuted-digits, x=none"]


def test_a_setting_from_before_it_existed_has_the_value_it_had_then():
    old = made("gpm", training={"epochs": 2})
    new = made("gpm", training={"epochs": 2, "warmup": 0})
    slower = made("gpm", training={"epochs": 2, "warmup": 9})
    assert names([old, new, slower]) == ["gpm warmup=0", "gpm warmup=0 (repeat 1)", "gpm warmup=9"]
    assert [len(group) for group in grouped([old, new, slower])] == [2, 1]


def test_long_values_are_shortened_and_numbered_where_they_look_alike():
    layers = {"conv1": 24, "conv2": 100, "fc1": 125}
    runs = [record(samples=s) for s in (20, layers, {**layers, "conv2": 99}, "a" * 40)]
    assert names(runs) == [
        "gpm samples=20",
        "gpm samples=24–125#1",
        "gpm samples=24–125#2",
        "gpm samples=aaaaaaa…aaaaaaa",
    ]


def test_equal_names_never_happen():
    runs = [record(), record(), record(seed=2), record()]
    assert names(runs) == ["gpm", "gpm (repeat 1)", "gpm", "gpm (repeat 2)"]
    same = record()
    assert names([same, same]) == ["gpm", "gpm (repeat 1)"]
    odd = [record("a b=1"), record("a", b=1), record("a", b=2)]  # any name can be a method's
    assert names(odd) == ["a b=1", "a b=1 (2)", "a b=2"]


def test_one_run_has_the_name_of_its_method():
    assert names([record(energy=0.9)]) == ["gpm"]


def run_of(experiment, label, seed=1, **changes):
    plan = experiments.load(experiment).plans("fast", [seed])[label][0].as_dict()
    training = {**plan["training"], **changes}
    return made().model_copy(update={**plan, "training": training})


def lines(*experiment_names):
    return [
        ExperimentLine(
            identity=first_identity(line.plan(experiment.benchmark, "fast", 0).as_dict()),
            experiment=experiment.name,
            label=line.label,
            source="",
            tolerance=1.0,
            paper_budget=Budget(),
        )
        for experiment in map(experiments.load, experiment_names)
        for line in experiment.distinct_lines("fast")
    ]


def test_a_run_of_an_experiment_has_the_name_of_its_line():
    plain, refined = "CGP", "CGP + BR, algorithm"
    runs = [run_of("components", label) for label in (plain, refined)]
    other = run_of("components", refined, learning_rate=0.5)
    shown = [*runs, other, run_of("cifar100", "EWC")]
    assert names(shown, lines("components", "cifar100")) == [
        plain,
        refined,
        "cgp similarity=0.7 learning_rate=0.5",
        "EWC",
    ]
    assert experiments_of(shown, lines("components", "cifar100")) == ["components", "cifar100"]


def test_lines_of_several_experiments_with_one_name_are_told_apart():
    # CGP is the whole method in one table, and the method without its parts in the other.
    whole, bare = run_of("cifar100", "CGP"), run_of("components", "CGP")
    of_both = lines("cifar100", "components")
    assert names([whole, run_of("cifar100", "EWC"), bare], of_both) == [
        "CGP",
        "EWC",
        "CGP (components)",
    ]


def test_lines_of_different_budgets_say_so():
    runs = [run_of("cifar100", "EWC"), run_of("cifar100", "HAT", epochs=1)]
    assert names(runs, lines("cifar100")) == ["EWC (epochs=12)", "hat epochs=1"]
