"""What the runs on a benchmark say in sentences, in the order of importance."""

import pytest

from classgrad.cli.report import experiment_lines
from classgrad.experiments import spec as experiments
from classgrad.report.page import page
from classgrad.report.page.summary import sections
from classgrad.report.page.tables import cells
from classgrad.report.page.verdict import facts, headline, remarks
from classgrad.runs.record import Layer
from pages import parsed, record


def verdict(*runs, lines=()):
    (section,) = sections(runs, published=lines)
    text = " ".join([headline(section), *remarks(section)])
    return text.replace("\u00a0", " ")


def run(method, accuracy, seed=1, **changes):
    return record(method, seed, average_accuracy=accuracy, **changes)


def test_it_says_who_wins_by_how_much_and_over_how_many_seeds():
    one = verdict(run("cgp", 90.0), run("gpm", 88.5))
    assert one.startswith("cgp is first with 90.0 %, 1.5 points ahead of gpm, with one seed each.")
    cgp = [run("cgp", accuracy, seed) for seed, accuracy in ((1, 90.0), (2, 94.0), (3, 86.0))]
    gpm = [run("gpm", accuracy, seed) for seed, accuracy in ((1, 89.0), (2, 91.0), (3, 87.0))]
    several = verdict(*cgp, *gpm)
    assert several.startswith(
        "cgp is first with 90.0 ± 4.0 %, 1.0 point ahead of gpm, on 2 of 3 seeds. The lead lies "
        "between −4.0 and +6.0 points at 95 %: too close to tell."
    )
    clear = [run("gpm", accuracy, seed) for seed, accuracy in ((1, 80.1), (2, 83.9), (3, 76.0))]
    assert verdict(*cgp, *clear).startswith(
        "cgp wins with 90.0 ± 4.0 %, 10.0 points ahead of gpm, on 3 of 3 seeds. The lead lies "
        "between +9.8 and +10.2 points at 95 %."
    )
    alone = verdict(*cgp)
    assert alone.startswith("cgp reaches 90.0 ± 4.0 % over 3 seeds.")


def test_the_second_is_of_another_method_if_there_is_one():
    runs = [
        run("cgp", 90.0 - n).model_copy(update={"method": {"name": "cgp", "x": n + 1}})
        for n in range(2)
    ]
    assert "cgp x=1 is first with 90.0 %, 1.0 point ahead of cgp x=2" in verdict(*runs)
    assert "cgp x=1 is first with 90.0 %, 5.0 points ahead of gpm" in verdict(
        *runs, run("gpm", 85.0)
    )


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([run("cgp", 90.0), run("gpm", 90.0)], "cgp and gpm are level at 90.0 %, with one seed"),
        ([run("cgp", 90.0), run("gpm", 80.0, seed=2)], "but has no seed in common"),
        ([run("cgp", 90.0, complete=False)], "No run has finished yet"),
        ([run("multitask", 90.0)], "multitask reaches 90.0 % with one seed."),
        ([run("cgp", None)], "cgp has finished, and has no accuracy."),
    ],
)
def test_it_does_not_say_more_than_there_is(runs, words):
    assert words in verdict(*runs)


def test_bounds_win_nothing():
    text = verdict(run("multitask", 99.0), run("cgp", 90.0), run("finetune", 50.0))
    assert text.startswith("cgp reaches 90.0 % with one seed.")
    assert "multitask (all tasks at once) 99.0 %, finetune (protects nothing) 50.0 %" in text


def test_other_budgets_are_said():
    text = verdict(
        run("cgp", 90.0, training={"epochs": 10}), run("gpm", 80.0, training={"epochs": 1})
    )
    assert "cgp epochs=10 is first" in text
    assert "but with 10 epochs against 1 epoch" in text


def test_a_network_that_has_grown_is_named_so():
    text = verdict(run("pgn", 90.0, capacity=271.0), run("gpm", 88.0, capacity=100.0))
    assert "pgn stores 271 % of the network's parameters" in text
    assert "of those that stay below 105 %, gpm is first: 88.0 %" in text
    assert "stores" not in verdict(run("gpm", 88.0, capacity=101.0))


def of_line(label, accuracy, experiment="five-datasets"):
    plan = experiments.load(experiment).plans("fast", [1])[label][0].as_dict()
    return record(accuracies=((accuracy,),)).model_copy(update=plan)


def test_it_says_whether_the_papers_order_is_repeated_and_with_what_budget():
    runs = [of_line(*pair) for pair in (("CGP", 80.0), ("GPM, own rate", 70.0), ("EWC", 60.0))]
    lines = experiment_lines(runs)
    text = verdict(*runs, lines=lines)
    assert "order is repeated: CGP (90.9), GPM, own rate (90.4), EWC (88.6)." in text
    assert "The paper's first, HAT (91.3), has not been run here." in text
    assert "None of the paper's 3 accuracies is met (± 1.5), with 3 of up to 100 epochs" in text
    other = [of_line(*pair) for pair in (("CGP", 60.0), ("GPM, own rate", 90.2), ("EWC", 61.0))]
    text = verdict(*other, lines=lines)
    assert "is not repeated: it has CGP (90.9), GPM, own rate (90.4), EWC (88.6); here" in text
    assert "here it is GPM, own rate (90.2), EWC (61.0), CGP (60.0)." in text
    assert "1 of the paper's 3 accuracies is met" in text
    first = [*runs, of_line("HAT", 50.0)]
    assert "has not been run" not in verdict(*first, lines=lines)


@pytest.mark.parametrize(
    ("accuracies", "words", "sign"),
    [
        ((88.5, 88.6, 88.7), "is met (± 1.5)", "≈ +0.0"),
        ((84.0, 84.2, 84.1), "is not met (± 1.5)", "−4.5"),
        ((86.6, 90.6, 88.6), "is open, partly within tolerance (± 1.5)", "+0.0"),
    ],
)
def test_of_several_seeds_the_interval_decides_whether_a_figure_is_repeated(
    accuracies, words, sign
):
    runs = [
        of_line("EWC", accuracy).model_copy(update={"seed": seed})
        for seed, accuracy in enumerate(accuracies)
    ]
    lines = experiment_lines(runs)
    assert f"The paper's accuracy {words}" in verdict(*runs, lines=lines)
    (section,) = sections(runs, published=lines)
    assert cells(section, section.rows[0])["paper ACC"].difference == sign


def test_of_many_lines_the_pairs_are_counted():
    labels = ["HAT", "CGP", "GPM, own rate", "EWC", "ER_Res", "A-GEM"]
    runs = [of_line(label, 90.0 - n) for n, label in enumerate(labels)]
    lines = experiment_lines(runs)
    assert "The paper's order is repeated of all 6 lines." in verdict(*runs, lines=lines)
    swapped = [*runs[:-1], of_line("A-GEM", 99.0)]
    text = verdict(*swapped, lines=lines)
    assert "repeated in 10 of 15 pairs of lines" in text
    assert "there HAT (91.3) is before A-GEM (84.0), here they have 90.0 and 99.0" in text


def test_the_figures_of_the_best_line_are_on_the_first_screen():
    layers = [Layer(name=name, dimension=10, ranks=[rank]) for name, rank in (("a", 2), ("b", 7))]
    cgp = run("cgp", 90.0, layers=layers, average_accuracy_task_free_statistics=61.0)
    (section,) = sections([cgp, run("finetune", 50.0)])
    label, told = facts(section)
    assert label == "cgp"
    values = {
        fact.title: (fact.value.replace("\u00a0", " "), fact.note.replace("\u00a0", " "))
        for fact in told
    }
    assert values["Task known"] == ("90.0 %", "backward transfer −1.0 points")
    assert values["Task unknown"] == ("61.0 %", "by statistics, chance 25 %")
    assert values["Capacity left"] == (
        "30 %",
        "of b's directions are free, the fullest of 2 layers",
    )
    assert values["Cost"] == ("13.0 s, 2.0 kB", "finetune: 13.0 s, 2.0 kB")
    root = parsed(page([cgp]))
    assert [one.text for one in root.one("dl", class_="facts").all("dt")] == list(values)


def test_benchmarks_with_most_published_figures_come_first_and_toys_last():
    cifar, five = of_line("EWC", 70.0, "cifar100"), of_line("EWC", 70.0)
    fewer = cifar.model_copy(
        update={"benchmark_options": {**cifar.benchmark_options, "train_per_class": 9}}
    )
    held = cifar.model_copy(
        update={"benchmark_options": {**cifar.benchmark_options, "held_out": 0.2}}
    )
    runs = [run("a", 1.0, benchmark="permuted-digits"), held, fewer, five, run("a", 1.0), cifar]
    titles = [section.title for section in sections(runs, published=experiment_lines(runs))]
    assert titles == [
        "split-cifar100, train_per_class=none",
        "split-cifar100, train_per_class=9",
        "split-cifar100 (held-out), train_per_class=none, held_out=0.2",
        "five-datasets",
        "toys",
        "permuted-digits",
    ]
