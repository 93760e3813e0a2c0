"""Runs are named by what tells them apart."""

from classgrad.report.records import label, labels
from classgrad.runs.record import RunRecord


def record(method="gpm", seed=1, benchmark="permuted-digits", **settings):
    training = {"epochs": settings.pop("epochs", 10), "learning_rate": settings.pop("rate", 0.1)}
    return RunRecord.model_construct(
        benchmark=benchmark,
        benchmark_options={},
        method={"name": method, **settings},
        training=training,
        network="mlp",
        network_options={},
        seed=seed,
    )


def test_runs_of_one_method_are_named_by_the_settings_that_differ():
    runs = [record(energy=0.9), record(energy=0.95), record("cgp", energy=0.9)]
    assert labels(runs) == ["gpm energy=0.9", "gpm energy=0.95", "cgp"]


def test_methods_with_different_budgets_show_them():
    assert labels([record(epochs=1), record("cgp", epochs=10)]) == ["gpm epochs=1", "cgp epochs=10"]
    most = [record(), record("cgp"), record("sgp"), record("den", epochs=5)]
    assert labels(most) == ["gpm", "cgp", "sgp", "den epochs=5"]


def test_rates_of_other_methods_are_not_shown():
    assert labels([record(rate=0.1), record("cgp", rate=0.2)]) == ["gpm", "cgp"]


def test_equal_names_never_happen():
    assert labels([record(), record(), record(seed=2)]) == ["gpm", "gpm (2)", "gpm"]


def test_one_run_has_the_name_of_its_method():
    assert label(record(energy=0.9), [record(energy=0.9)]) == "gpm"
