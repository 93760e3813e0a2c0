"""A run is identified without the classes of its settings as it is with them."""

from pathlib import Path

import pytest

from classgrad import defaults
from classgrad.benchmarks import BENCHMARKS
from classgrad.methods import METHODS
from classgrad.networks import NETWORKS
from classgrad.runs.plain import FORMER, first_identity, in_effect, keys
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import identity, make_plan, settings_types
from classgrad.training.config import Training

RESULTS = Path(__file__).parents[2] / "results"
FILES = [*(RESULTS / "paper").glob("*/record.json"), *(RESULTS / "smoke").glob("*/*/record.json")]


def by_classes(values):
    """The same by `runs.spec`, but for the seed."""
    return {name: value for name, value in identity(values, version=1).items() if name != "seed"}


def test_records_of_several_versions_have_the_same_identity():
    records = [RunRecord.load(file) for file in FILES]
    assert len({record.defaults for record in records}) > 1
    for record in records:
        values = record.settings()
        assert first_identity(values) == by_classes(values)
        assert keys(values) == {part: key for part, (key, _) in settings_types(values).items()}


def test_all_settings_in_effect_are_those_of_the_classes():
    for method in METHODS:
        values = make_plan("split-cifar100", method).as_dict()
        older = {**values, "training": {"epochs": 3}}  # as if the others did not exist yet
        told = in_effect(defaults.as_json(older))
        for part, (key, kind) in settings_types(values).items():
            assert told[part].keys() - {"name"} == kind.model_fields.keys(), key
        assert told["training"]["epochs"] == 3
        before = defaults.of("training", 1)
        assert all(told["training"][n] == before[n] for n in told["training"].keys() - {"epochs"})


def test_former_settings_are_all_known():
    classes = {"training": Training}
    classes |= {f"method {name}": kind for name, kind in METHODS.items()}
    classes |= {f"network {name}": kind.Options for name, kind in NETWORKS.items()}
    classes |= {f"benchmark {name}": one.Options for name, one in BENCHMARKS.items()}
    gone = {key: {*kind.removed, *kind.renamed} for key, kind in classes.items()}
    assert {key: names for key, names in gone.items() if names} == FORMER


@pytest.mark.parametrize("rule", ["tables", "text"])
def test_a_former_setting_is_translated_by_its_class(rule):
    values = make_plan("split-cifar100", "cgp").as_dict()
    values["method"] = {"name": "cgp", "rule": rule}
    assert first_identity(values) == by_classes(values)


def test_a_run_of_the_users_own_is_left_to_the_classes():
    values = make_plan("permuted-digits", "gpm").as_dict()
    values |= {"benchmark": "mine", "benchmark_options": {"noise": 1}}
    assert first_identity(values) == by_classes(values)
    assert in_effect(values)["benchmark_options"] == {"noise": 1}
