from pathlib import Path

import pytest

from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.runs.record import RunRecord

PAGE = Path(__file__).parent.parent.parent / "docs" / "reproduce.md"
ALL = experiments.load_many("all")
SMALL = """
title = "Small"
source = "a test"
benchmark = "permuted-digits"
tolerance = 2
[[lines]]
label = "plain"
method = "cgp"
values = { eta = 1, epochs = 3 }
recipes.fast = { epochs = 2 }
paper = { accuracy = 90.0, transfer = -0.05, transfer_unit = "fraction" }
[[lines]]
label = "gpm"
method = "gpm"
"""


@pytest.fixture
def small(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SMALL, encoding="utf-8")
    return experiments.load(str(file))


def test_values_of_the_experiment_are_those_of_lines_that_have_no_others(tmp_path):
    file = tmp_path / "small.toml"
    start, *lines = SMALL.split("[[lines]]")
    text = "[[lines]]".join([start + "values = { epochs = 7, batch_size = 8 }\n", *lines])
    file.write_text(text, encoding="utf-8")
    plans = experiments.load(str(file)).plans("paper", [1])
    trained = {label: plan.training for label, [plan] in plans.items()}
    assert (trained["plain"].epochs, trained["plain"].batch_size) == (3, 8)
    assert (trained["gpm"].epochs, trained["gpm"].batch_size) == (7, 8)


@pytest.mark.parametrize("recipe", ["fast", "paper"])
@pytest.mark.parametrize("experiment", ALL, ids=lambda experiment: experiment.name)
def test_every_line_is_a_run_that_differs_from_the_others(experiment, recipe):
    plans = experiment.plans(recipe, [1, 2])
    names = {label: [plan.folder_name() for plan in several] for label, several in plans.items()}
    assert all(len(set(several)) == 2 for several in names.values())
    assert len({several[0] for several in names.values()}) == len(names)


@pytest.mark.parametrize("name", ["superclass", "five-datasets"])
def test_lines_that_are_one_run_in_a_recipe_are_one_row(name):
    experiment = experiments.load(name)
    lines = {
        recipe: [line.label for line in experiment.distinct_lines(recipe) if line.method == "gpm"]
        for recipe in ("fast", "paper")
    }
    assert len(lines["paper"]) == 2 * len(lines["fast"])
    assert not any("CGP's rate" in label for label in lines["fast"])
    assert list(experiment.records([], "fast")) == [
        line.label for line in experiment.distinct_lines("fast")
    ]


def test_the_headline_run_is_shared_by_the_tables_that_show_it():
    places = [("cifar100", "CGP"), ("eta", "η = 0.7")]
    places += [
        ("lambda", "λ = 0.1"),
        ("samples", "BR-GTL, 125 samples"),
        ("splits", "CGP, 10 tasks"),
    ]
    for recipe, reading in (("fast", "released"), ("paper", "algorithm")):
        result = {
            experiments.load(name).plans(recipe, [1])[label][0].folder_name()
            for name, label in [*places, ("components", f"CGP + BR + Con, {reading}")]
        }
        assert len(result) == 1


def test_gpm_has_its_own_rate_and_that_of_cgp():
    plans = experiments.load("cifar100").plans("paper", [1])
    rates = {label: plan.training.learning_rate for label, (plan,) in plans.items()}
    assert rates["GPM, CGP's rate"] == rates["CGP"]
    assert rates["GPM, own rate"] != rates["CGP"]
    # Where the two are the same, they are one line.
    plans = experiments.load("cifar100").plans("fast", [1])
    rates = {label: plan.training.learning_rate for label, (plan,) in plans.items()}
    assert rates["GPM, own rate"] == rates["CGP"]
    assert "GPM, CGP's rate" not in rates


def test_superclasses_are_there_in_both_layouts():
    plans = experiments.load("superclass").plans("paper", [1])
    layouts = {label: plan.benchmark_options["layout"] for label, (plan,) in plans.items()}
    assert all(label.endswith(layout) for label, layout in layouts.items())
    assert list(layouts.values()).count("image") == list(layouts.values()).count("scrambled") > 0


def test_published_transfer_has_one_unit(small):
    assert small.lines[0].paper.transfer_percent == -5
    lines = {line.label: line.paper for line in experiments.load("cifar100").lines}
    assert lines["OWM"].transfer_percent == -30
    assert lines["CGP"].transfer_percent == -0.37
    assert lines["Multitask"].transfer_percent is None


def test_values_for_a_recipe_go_before_the_others(small):
    assert small.plans("fast", [1])["plain"][0].training.epochs == 2
    assert small.plans("paper", [1])["plain"][0].training.epochs == 3


def test_finds_the_records_of_its_lines_and_no_others(small):
    def record(plan):
        return RunRecord(**plan.as_dict(), tasks=["one"])

    plans = small.plans("fast", [1, 2])
    records = [record(plan) for several in plans.values() for plan in several]
    other = record(small.plans("paper", [1])["plain"][0])
    result = small.records([other, *records], "fast")
    assert result == {"plain": records[:2], "gpm": records[2:]}
    assert small.records([other], "fast") == {"plain": [], "gpm": []}


def test_several_can_be_named():
    assert [e.name for e in experiments.load_many("eta, lambda")] == ["eta", "lambda"]
    assert [e.name for e in experiments.load_many("all")] == experiments.names()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tolerance = 2", "tolerance = 0"), "tolerance: Input should be greater than 0"),
        (('label = "gpm"', 'label = "plain"'), "two lines have the label 'plain'"),
        (('"fraction"', '"parts"'), "lines.0.paper.transfer_unit: Input should be 'per cent'"),
        (('title = "Small"', ""), "title: Field required"),
        (('source = "a test"', "source = "), "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, change, message):
    file = tmp_path / "small.toml"
    file.write_text(SMALL.replace(*change), encoding="utf-8")
    with pytest.raises(UserError) as error:
        experiments.load(str(file))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_page_lists_every_experiment_and_its_own_table_works(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    for experiment in ALL:
        place = experiment.source.removeprefix("paper, ")
        assert f"| `{experiment.name}` | {experiment.title} | {place} |" in page
    own = tmp_path / "my-table.toml"
    own.write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    plans = experiments.load(str(own)).plans("fast", [1])
    assert plans["CGP"][0].method.similarity == 0.8
    assert plans["GPM"][0].training.epochs == 5


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UserError, match="unknown experiment 'etta': did you mean 'eta'"):
        experiments.load_many("etta")
    with pytest.raises(UserError, match="no experiment is named"):
        experiments.load_many(" ,")
