"""Which runs there are to do, what is known of them beforehand, and how they are named."""

import json
import shutil

import pytest
from classgrad.experiments.checks import Streams

from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.experiments.jobs import of_experiments, of_plans
from classgrad.runs.run import run
from classgrad.runs.spec import Plan, make_plan

TINY = {"epochs": 1, "tasks": 2, "train_per_class": 4}


def tiny(method="finetune", benchmark="split-digits", **values):
    return make_plan(benchmark, method, values={**TINY, **values})


def test_a_run_that_several_tables_show_is_one_job(tmp_path):
    tables = experiments.chosen("all")
    jobs = of_experiments(tables, "fast", [1, 2], tmp_path)
    folders = [job.folder for job in jobs]
    assert len(set(folders)) == len(folders)
    lines = [
        plan for e in tables for several in e.plans("fast", [1, 2]).values() for plan in several
    ]
    assert {job.folder for job in jobs} == {tmp_path / plan.folder_name() for plan in lines}
    (headline,) = [job for job in jobs if "eta: η = 0.7" in job.labels and job.plan.seed == 1]
    assert len(headline.labels) == 6
    assert headline.label == "cifar100: CGP (+5)"


def test_the_first_seed_of_all_lines_comes_first(tmp_path):
    jobs = of_experiments(experiments.chosen("eta,components"), "fast", [4, 2], tmp_path)
    assert len(jobs) == 24
    assert [job.plan.seed for job in jobs] == [4] * 12 + [2] * 12
    assert jobs[0].labels == ("eta: η = 0.5",)
    (first, *_) = of_experiments(experiments.chosen("eta"), "fast", [4], tmp_path)
    assert first.labels == ("η = 0.5",)


def test_a_label_that_comes_twice_counts_once(tmp_path):
    (job,) = of_plans([("a", tiny()), ("a", tiny()), ("b", tiny())], tmp_path)
    assert job.labels == ("a", "b")
    assert job.title == "a (+1), seed 1"


def test_states_are_missing_cut_and_done(tmp_path):
    plan = tiny()
    (job,) = of_plans([("a", plan)], tmp_path)
    assert job.state() == "missing"
    assert not job.folder.exists()
    (job.folder / "checkpoints").mkdir(parents=True)
    assert job.state() == "cut"
    shutil.rmtree(job.folder)
    run("split-digits", "finetune", values=TINY, out=tmp_path)
    assert job.state() == "done"
    record = job.record()
    record.complete = False
    record.save(job.folder)
    assert job.state() == "cut"
    record.complete, record.training["epochs"] = True, 7  # the record of another run
    record.save(job.folder)
    assert job.state() == "cut"
    assert job.record() is None
    (job.folder / "record.json").write_text("{")
    assert job.state() == "cut"


@pytest.mark.parametrize("benchmark", ["split-digits", "folder:somewhere"])
def test_a_plan_goes_through_json_unchanged(benchmark):
    plan = make_plan(benchmark, "gpm", seed=3, values={"energy": {"*": 0.91}, "epochs": 2})
    again = Plan.from_dict(json.loads(json.dumps(plan.as_dict())))
    assert again == plan
    assert again.folder_name() == plan.folder_name()


def test_missing_data_and_plans_that_do_not_fit_are_found_beforehand(tmp_path):
    streams = Streams(tmp_path)
    streams.refuse_what_cannot_run(of_plans([("a", tiny())], tmp_path))
    for plan, message in (
        (make_plan("split-cifar100"), "CIFAR-100 is missing"),
        (tiny("gpm", energy={"fc1": 0.9}), "no value for layer"),
        (make_plan("split-digits", network="alexnet5"), "needs images"),
    ):
        jobs = of_plans([("a", tiny()), ("b", plan)], tmp_path)
        with pytest.raises(UserError, match=message):
            streams.refuse_what_cannot_run(jobs)
    assert list(tmp_path.iterdir()) == []


def test_what_streams_are_like_is_looked_up_once(tmp_path, monkeypatch):
    from classgrad.experiments import checks

    loaded = []
    load = checks.load_stream
    monkeypatch.setattr(checks, "load_stream", lambda *a: loaded.append(a) or load(*a))
    streams = Streams(None)
    jobs = of_plans([("a", tiny()), ("b", tiny("gpm")), ("c", tiny(tasks=5))], tmp_path)
    streams.refuse_what_cannot_run(jobs)
    assert len(loaded) == 2
    assert streams.facts(tiny("ewc")).images == 40
    assert streams.facts(tiny("ewc")).input_shape == (1, 8, 8)
    assert len(loaded) == 2
