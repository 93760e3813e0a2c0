"""Which runs there are to do, and how they are named."""

import json
import shutil

import pytest

from classgrad.checkpoints.lock import InUse
from classgrad.errors import Diverged, Stopped, UserError
from classgrad.experiments import spec as experiments
from classgrad.experiments.jobs import Status, end_message, jobs_of_experiments, jobs_of_plans
from classgrad.runs.run import run
from classgrad.runs.spec import Plan, make_plan

TINY = {"epochs": 1, "tasks": 2, "train_per_class": 4}


def tiny(method="finetune", benchmark="split-digits", **values):
    return make_plan(benchmark, method, values={**TINY, **values})


def test_a_run_that_several_tables_show_is_one_job(tmp_path):
    tables = experiments.load_many("all")
    jobs = jobs_of_experiments(tables, "fast", [1, 2], tmp_path)
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
    jobs = jobs_of_experiments(experiments.load_many("eta,components"), "fast", [4, 2], tmp_path)
    assert len(jobs) == 28
    assert [job.plan.seed for job in jobs] == [4] * 14 + [2] * 14
    assert jobs[0].labels == ("eta: η = 0.5",)
    (first, *_) = jobs_of_experiments(experiments.load_many("eta"), "fast", [4], tmp_path)
    assert first.labels == ("η = 0.5",)


def test_a_label_that_comes_twice_counts_once(tmp_path):
    (job,) = jobs_of_plans([("a", tiny()), ("a", tiny()), ("b", tiny())], tmp_path)
    assert job.labels == ("a", "b")
    assert job.title == "a (+1), seed 1"


def test_states_are_missing_cut_and_done(tmp_path):
    plan = tiny()
    (job,) = jobs_of_plans([("a", plan)], tmp_path)
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


@pytest.mark.parametrize("kind", [UserError, InUse])
def test_the_end_of_a_job_has_the_reason_and_the_hint_of_its_error(kind, tmp_path):
    (job,) = jobs_of_plans([("a", tiny())], tmp_path)
    status = Status(job)
    status.update(json.loads(json.dumps(end_message(kind("no file", hint="fetch:mnist")))))
    state = "busy" if kind is InUse else "failed"
    assert (status.state, status.why, status.hint) == (state, "no file", "fetch:mnist")
    assert not status.diverged
    status.update(end_message(Diverged("the loss is nan")))
    assert (status.state, status.why, status.diverged) == ("failed", "the loss is nan", True)
    status.update(end_message(Stopped(15)))
    assert (status.state, status.why, status.hint) == ("stopped", "", None)
    assert not status.diverged


@pytest.mark.parametrize("benchmark", ["split-digits", "folder:somewhere"])
def test_a_plan_goes_through_json_unchanged(benchmark):
    plan = make_plan(benchmark, "gpm", seed=3, values={"energy": {"*": 0.91}, "epochs": 2})
    again = Plan.from_dict(json.loads(json.dumps(plan.as_dict())))
    assert again == plan
    assert again.folder_name() == plan.folder_name()
