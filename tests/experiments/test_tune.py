"""The rule by which settings are chosen, on made-up records, and the files of choices."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from classgrad.errors import UserError
from classgrad.experiments.jobs import Status
from classgrad.experiments.tune import (
    RULE,
    Point,
    Study,
    choose,
    edges,
    outcome,
    save,
    with_choice,
)
from classgrad.runs import recipes
from classgrad.runs.spec import make_plan
from pages import record


def study(grid=None, **changes):
    usual = {"benchmark": "split-digits", "method": "gpm", "seeds": [101, 102]}
    return Study(**{**usual, "grid": grid or {"energy": [0.9, 0.95, 0.98]}, **changes})


def point(*accuracies, diverged=()):
    made = {seed: record(seed=seed, accuracies=((a,),)) for seed, a in enumerate(accuracies, 101)}
    return Point({}, made, {}, dict.fromkeys(diverged, "the loss is nan"))


def finished(place, one, accuracies):
    """Write a record for every trial: the accuracy by its point and seed."""
    for values in one.points():
        for seed in one.seeds:
            job = one.job(values, seed, place)
            accuracy = accuracies(values, seed)
            if accuracy is None:
                continue
            job.folder.mkdir(parents=True)
            made = record(accuracies=((accuracy,),))
            made.model_copy(update={**job.plan.as_dict(), "complete": True}).save(job.folder)


@pytest.mark.parametrize(
    ("points", "chosen"),
    [
        ([point(80, 82), point(83, 81.5), point(70, 70)], 1),
        ([point(80, 80), point(80.09, 80.09), point(79, 79)], 0),  # less than 0.1 below
        ([point(80, 80), point(80.11, 80.11), point(80.05, 80.05)], 1),
        ([point(90), point(90, 50), point(75, 75)], 0),
        ([point(99, diverged=[102]), point(50, 50)], 1),  # not the mean of what is left
        ([point(diverged=[101, 102])], None),
    ],
)
def test_the_highest_mean_is_chosen_and_of_about_equal_ones_the_first(points, chosen):
    assert choose(points) == chosen


def test_points_are_in_the_order_of_the_grid_and_all_trials_are_judged_on_held_out_images():
    one = study({"energy": [0.9, 0.95], "learning_rate": [0.1, 0.2]}, fixed={"epochs": 2})
    assert [tuple(values.values()) for values in one.points()] == [
        (0.9, 0.1),
        (0.9, 0.2),
        (0.95, 0.1),
        (0.95, 0.2),
    ]
    jobs = one.jobs(Path("runs"))
    assert [job.plan.seed for job in jobs] == [101] * 4 + [102] * 4
    for job in jobs:
        assert job.plan.benchmark_options["held_out"] == 0.2
        assert job.plan.training.epochs == 2
    assert len({job.folder for job in jobs}) == 8


@pytest.mark.parametrize(
    ("grid", "choice", "lines"),
    [
        ({"energy": [0.9, 0.95, 0.98]}, {"energy": 0.95}, []),
        ({"learning_rate": [0.1, 0.01]}, {"learning_rate": 0.1}, ["try learning_rate=1.0 beyond"]),
        ({"learning_rate": [0.1, 0.01]}, {"learning_rate": 0.01}, ["learning_rate=0.001 beyond"]),
        ({"epochs": [1, 3]}, {"epochs": 3}, ["try epochs=9 beyond"]),
        ({"epochs": [1, 3]}, {"epochs": 1}, []),  # there is nothing below
        ({"epochs": [2, 3]}, {"epochs": 2}, ["epochs=1 beyond"]),
        ({"momentum": [0.0, 0.5]}, {"momentum": 0.0}, []),
        ({"energy": [0.8, 0.99]}, {"energy": 0.99}, ["energy=0.99 is at the edge"]),
        ({"schedule": ["cosine", "constant"]}, {"schedule": "cosine"}, []),
        ({"nesterov": [True, False]}, {"nesterov": True}, []),
        ({"epochs": [3]}, {"epochs": 3}, []),
        (
            {"epochs": [1, 3], "learning_rate": [0.1, 0.2]},
            {"epochs": 3, "learning_rate": 0.2},
            ["epochs=9", "learning_rate=0.4"],
        ),
    ],
)
def test_a_number_at_the_edge_of_the_grid_is_told(grid, choice, lines):
    told = edges(study(grid), choice)
    assert len(told) == len(lines)
    for line, part in zip(told, lines, strict=True):
        assert part in line
        assert "at the edge of the grid: try " in line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [101, 3]}, r"^seeds below 100 are for tables \(got 3\)"),
        ({"fixed": {"energy": 0.9}}, "'energy' is both fixed and to be tried"),
        ({"grid": {"held_out": [0.1]}}, "'held_out' is no setting to be tried"),
        ({"fixed": {"held_out": 0.1}}, "'held_out' is no setting to be tried"),
        ({"grid": {"seed": [101, 102]}}, "'seed' is no setting to be tried"),
        ({"grid": {"tasks": [2, 5]}}, "'tasks' is an option of the benchmark"),
        ({"grid": {"energy": [0.9, 2]}}, "energy must be less than or equal to 1"),
        ({"grid": {"enrgy": [0.9]}}, "did you mean 'energy'"),
        ({"held_out": 1}, "held_out must be less than 1"),
    ],
)
def test_what_cannot_be_tried_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        study(**changes).check()


def test_the_outcome_has_every_trial_and_is_written_as_json(tmp_path):
    one = study(fixed={"epochs": 2})
    best = {0.9: 80.0, 0.95: 85.0, 0.98: 83.0}
    finished(tmp_path / "runs", one, lambda values, seed: best[values["energy"]] + seed - 101)
    result = outcome(one, tmp_path / "runs")
    path = save(result, tmp_path, "classgrad tune ...")
    assert path == tmp_path / "split-digits-gpm.json"
    content = json.loads(path.read_text())
    assert content["rule"] == RULE
    assert content["choice"] == {"energy": 0.95}
    assert (content["seeds"], content["held_out"], content["fixed"]) == (
        [101, 102],
        0.2,
        {"epochs": 2},
    )
    assert content["grid"] == {"energy": [0.9, 0.95, 0.98]}
    assert [p["accuracy_mean"] for p in content["points"]] == [80.5, 85.5, 83.5]
    second = content["points"][1]
    assert second["average_accuracy"] == {"101": 85.0, "102": 86.0}
    for seed, folder in second["folders"].items():
        saved = json.loads((tmp_path / folder / "record.json").read_text())
        assert (saved["seed"], saved["method"]["energy"]) == (int(seed), 0.95)


def test_trials_do_not_measure_accuracy_without_task_identity_unless_they_are_to(tmp_path):
    def measured(one):
        return {job.plan.training.task_free for job in one.jobs(tmp_path)}

    assert measured(study()) == {"never"}
    assert measured(study(fixed={"task_free": "every"})) == {"every"}
    assert measured(study(grid={"task_free": ["end", "every"]})) == {"end", "every"}
    # Trials that did so are trials of the same study, and are not repeated.
    finished(tmp_path, study(seeds=[101], fixed={"task_free": "end"}), lambda *_: 90.0)
    jobs = study().jobs(tmp_path)
    assert [(job.plan.seed, job.plan.training.task_free, job.state()) for job in jobs] == [
        *[(101, "end", "done")] * 3,
        *[(102, "never", "missing")] * 3,
    ]


def test_a_choice_can_be_by_the_accuracy_without_the_task(tmp_path):
    one = study(by="statistics", seeds=[101])
    assert {job.plan.training.task_free for job in one.jobs(tmp_path)} == {"end"}
    for values, with_task, without in (
        ({"energy": 0.9}, 90.0, 40.0),
        ({"energy": 0.95}, 80.0, 50.0),
    ):
        job = one.job(values, 101, tmp_path / "runs")
        made = record(seed=101, accuracies=((with_task,),)).model_copy(
            update={
                **job.plan.as_dict(),
                "complete": True,
                "average_accuracy_task_free_statistics": without,
            }
        )
        job.folder.mkdir(parents=True)
        made.save(job.folder)
    one = replace(one, grid={"energy": [0.9, 0.95]})
    result = outcome(one, tmp_path / "runs")
    content = json.loads(save(result, tmp_path, "").read_text())
    assert (content["by"], content["choice"]) == ("statistics", {"energy": 0.95})
    assert "accuracy without the task, by statistics, over all tasks" in content["rule"]
    first, second = content["points"]
    assert first["average_accuracy"] == {"101": 90.0}
    assert second["average_accuracy_task_free_statistics"] == {"101": 50.0}
    assert second["accuracy_mean"] == 50
    # The same trials judged with the task are another study, and choose another point.
    other = outcome(replace(one, by=None), tmp_path / "runs")
    assert other.choice == {"energy": 0.9}
    content = json.loads(save(other, tmp_path, "").read_text())
    assert [old["by"] for old in content["earlier"]] == ["statistics"]
    with pytest.raises(UserError, match="has no accuracy by prototypes"):
        outcome(replace(one, by="prototypes"), tmp_path / "runs")


def test_a_trial_that_is_missing_leaves_no_choice_and_one_that_diverged_does(tmp_path):
    one = study()
    finished(tmp_path / "runs", one, lambda values, seed: None if values["energy"] == 0.9 else 90.0)
    assert outcome(one, tmp_path / "runs") is None
    jobs = [one.job({"energy": 0.9}, seed, tmp_path / "runs") for seed in one.seeds]
    full = [Status(job, "failed", why="no space left on device") for job in jobs]
    assert outcome(one, tmp_path / "runs", full) is None
    why = "the loss is nan at task 1 ('0 1'), epoch 2, step 1: lower learning_rate"
    nan = [Status(job, "failed", why=why, diverged=True) for job in jobs]
    result = outcome(one, tmp_path / "runs", nan)
    assert result.choice == {"energy": 0.95}
    content = json.loads(save(result, tmp_path, "").read_text())
    assert content["points"][0]["diverged"] == {"101": why, "102": why}
    assert content["points"][0]["accuracy_mean"] is None


def test_an_earlier_study_stays_in_the_file_and_a_repeated_one_takes_its_own_place(tmp_path):
    def accuracy(values, seed):
        return 80.0

    first, second = study(), study({"learning_rate": [0.1, 0.2]})
    for one in (first, second):
        finished(tmp_path / "runs", one, accuracy)
    for one in (first, second, first):
        path = save(outcome(one, tmp_path / "runs"), tmp_path, "")
    content = json.loads(path.read_text())
    assert content["choice"] == {"energy": 0.9}
    assert [old["choice"] for old in content["earlier"]] == [{"learning_rate": 0.1}]
    path.write_text("[]")
    with pytest.raises(UserError, match="is not a file of this command"):
        save(outcome(first, tmp_path / "runs"), tmp_path, "")
    assert path.read_text() == "[]"


@pytest.mark.parametrize("name", ["fast", "paper"])
@pytest.mark.parametrize(
    ("benchmark", "method", "choice"),
    [
        ("split-digits", "gpm", {"energy": 0.91, "learning_rate": 0.123}),
        ("split-cifar100", "owm", {"damping": {"conv*": 1e-3, "*": 1.0}}),
        ("five-datasets", "trgp", {"energy": 0.9}),
        ("cifar100-superclass", "den", {"drift": 2.5, "epochs": 3}),
        ("permuted-mnist", "cgp", {"eta": 0.55}),
    ],
)
def test_a_recipe_with_the_choice_gives_the_chosen_plan(tmp_path, name, benchmark, method, choice):
    text = (Path(recipes.__file__).parent / f"{name}.toml").read_text()
    one = study({key: [value] for key, value in choice.items()}, benchmark=benchmark, method=method)
    new = with_choice(text, one, choice, "tuning/one.json")
    path = tmp_path / f"{name}.toml"
    path.write_text(new)
    plan = make_plan(benchmark, method, recipe=str(path))
    assert plan == make_plan(benchmark, method, recipe=name, values=choice)
    for other in ("cgp", "gpm", "owm", "finetune", "den"):
        if other != method:
            assert make_plan(benchmark, other, recipe=str(path)) == make_plan(
                benchmark, other, recipe=name
            )
    old_lines, new_lines = text.splitlines(), new.splitlines()
    changed = [line for line in new_lines if line not in old_lines]
    assert [line for line in changed if "=" in line] == [changed[-1]]
    assert (
        changed[-1].endswith("# tuned: tuning/one.json")
        or "; tuned: tuning/one.json" in changed[-1]
    )
    comments = [line for line in old_lines if line.startswith("#")]
    assert [line for line in new_lines if line.startswith("#")] == comments


@pytest.mark.parametrize(
    ("text", "grid", "message"),
    [
        ("", {"width": [32]}, "a recipe has no width for one method alone"),
        (
            "[benchmarks.split-digits.methods]\ngpm = { energy = 0.5 }\n"
            '"gpm,cgp" = { energy = 1.0 }',
            {"energy": [0.9]},
            "a later line of the recipe overrides energy of gpm on split-digits",
        ),
        ("", {"max_basis_mb": [None]}, "TOML has no null"),
    ],
)
def test_a_choice_that_a_recipe_cannot_hold_is_refused(text, grid, message):
    one = study(grid)
    with pytest.raises(UserError, match=message):
        with_choice(f'description = "mine"\n{text}', one, one.points()[0], "a.json")
