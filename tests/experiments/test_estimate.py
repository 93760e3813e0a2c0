"""What is known of runs beforehand: whether they fit their data, and how long they will take."""

from pathlib import Path

import pytest
import torch

from classgrad.errors import UserError
from classgrad.experiments import estimate
from classgrad.experiments.estimate import START_SECONDS, Estimate, Workload, finished_records
from classgrad.experiments.jobs import jobs_of_plans
from classgrad.runs.record import RunRecord, Seconds
from classgrad.runs.spec import make_plan


def plan(method="gpm", benchmark="permuted-digits", network=None, **values):
    values = {"epochs": 2, "train_per_class": 10, **values}
    return make_plan(benchmark, method, network=network, values=values)


def record(of, seconds, **others):
    return RunRecord(
        **of.as_dict(), tasks=["a", "b"], seconds=Seconds(train=seconds), complete=True, **others
    )


def estimated(of, *records):
    return Estimate(Workload(), records).of_plan(of)


def test_the_record_of_the_same_method_is_scaled_by_what_differs():
    known = record(plan(), 8.0)
    assert estimated(plan(), known) == pytest.approx(8)
    assert estimated(plan(epochs=6), known) == pytest.approx(24)
    assert estimated(plan(train_per_class=5), known) == pytest.approx(4)
    assert estimated(plan(tasks=10), known) == pytest.approx(16)


def test_the_nearest_record_decides():
    other, same = record(plan("ewc"), 3.0), record(plan(epochs=4), 20.0)
    exact = record(plan(epochs=4, tasks=10), 60.0)
    assert estimated(plan(), other) == pytest.approx(3)
    assert estimated(plan(), other, same) == pytest.approx(10)
    assert estimated(plan(tasks=10), other, same, exact) == pytest.approx(30)
    elsewhere = record(plan(benchmark="split-digits"), 1e9)
    assert estimated(plan(), elsewhere, other) == pytest.approx(3)
    larger = record(plan(network="lenet5"), 1e9)
    assert estimated(plan(), larger, other) == pytest.approx(3)


def test_contrast_and_rounds_count_more():
    known = record(plan("finetune"), 3.0)
    assert estimated(plan("cgp", contrast=0), known) == pytest.approx(3)
    assert estimated(plan("cgp", contrast=0.1), known) == pytest.approx(6)
    assert estimated(plan("den"), known) == pytest.approx(12)
    assert estimated(plan("rcl", trials=5, child_epochs=4), known) == pytest.approx(30)


def test_without_a_record_a_few_steps_are_timed(monkeypatch):
    timed = []
    monkeypatch.setattr(estimate, "timed_step", lambda *given: timed.append(given) or 0.5)
    result = Estimate(Workload())
    steps = 2 * 5 * 100 / 32  # epochs, tasks, images and batch
    assert result.of_plan(plan()) == pytest.approx(steps * 0.5)
    assert result.of_plan(plan("cgp")) == pytest.approx(2 * steps * 0.5)
    assert len(timed) == 1


def test_a_step_takes_some_time_and_leaves_the_threads_alone(monkeypatch):
    monkeypatch.setattr(estimate, "TIMED_SECONDS", 0.01)
    before = torch.get_num_threads()
    result = Estimate(Workload(), threads=before + 1)
    assert 1e-5 < result.step(plan()) < 1
    assert torch.get_num_threads() == before


def test_of_a_run_that_was_cut_only_the_rest_counts(tmp_path):
    (job,) = jobs_of_plans([("a", plan())], tmp_path)
    result = Estimate(Workload(), [record(plan(), 8.0)])
    assert result.of_job(job) == pytest.approx(START_SECONDS + 8)
    job.folder.mkdir()
    half = record(plan(), 4.0, accuracy_matrix=[[90.0]])
    half.complete = False
    half.save(job.folder)
    assert result.of_job(job) == pytest.approx(START_SECONDS + 4)
    half.model_copy(update={"tasks": [], "accuracy_matrix": []}).save(job.folder)
    assert result.of_job(job) == pytest.approx(START_SECONDS + 8)


def test_records_that_cannot_be_read_or_are_not_complete_are_passed_over(tmp_path):
    for name, seconds in (("good", 1.0), ("bad", 2.0), ("half", 3.0)):
        (tmp_path / name).mkdir()
        result = record(plan(), seconds)
        result.complete = name != "half"
        result.save(tmp_path / name)
    (tmp_path / "bad" / "record.json").write_text("{")
    for name, of in (("cuda", {"device": "cuda:0"}), ("several", {"processes": 2})):
        (tmp_path / name).mkdir()
        record(plan(), 2.0, **of).save(tmp_path / name)
    assert [result.seconds.total for result in finished_records(tmp_path)] == [1.0]
    assert [result.seconds.total for result in finished_records(tmp_path, "cuda")] == [2.0]
    assert finished_records(tmp_path / "nowhere") == []
    strange = record(plan(), 1.0)
    strange.method = {"name": "forgotten"}
    assert estimate.plan_of(strange) is None


def tiny(method="finetune", **values):
    values = {"epochs": 1, "tasks": 2, "train_per_class": 4, **values}
    return make_plan("split-digits", method, values=values)


def test_missing_data_and_plans_that_do_not_fit_are_found_beforehand(tmp_path):
    workload = Workload(tmp_path)
    workload.check(jobs_of_plans([("a", tiny())], tmp_path))
    for plan, message in (
        (make_plan("split-cifar100"), "CIFAR-100 is missing"),
        (tiny("gpm", energy={"fc1": 0.9}), "no value for layer"),
        (make_plan("split-digits", network="alexnet5"), "needs images"),
    ):
        jobs = jobs_of_plans([("a", tiny()), ("b", plan)], tmp_path)
        with pytest.raises(UserError, match=message):
            workload.check(jobs)
    assert list(tmp_path.iterdir()) == []


def test_streams_are_loaded_and_networks_built_once(tmp_path, monkeypatch):
    loaded, built = [], []
    load, build = estimate.load_stream, estimate.networks.build
    monkeypatch.setattr(estimate, "load_stream", lambda *a: loaded.append(a) or load(*a))
    monkeypatch.setattr(
        estimate.networks, "build", lambda *a, **options: built.append(a) or build(*a, **options)
    )
    monkeypatch.setattr(estimate, "TIMED_SECONDS", 0.01)
    workload = Workload()
    plans = [tiny(), tiny("hat"), tiny("den"), tiny("gpm"), tiny(tasks=5)]
    jobs = jobs_of_plans([(plan.method.name, plan) for plan in plans], tmp_path)
    workload.check(jobs)
    assert len(loaded) == 2
    assert workload.summary(tiny("ewc")).images == 40
    assert workload.summary(tiny("ewc")).input_shape == (1, 8, 8)
    assert Estimate(workload).step(tiny()) > 0
    assert (len(loaded), len(built)) == (2, 1)


def test_a_method_that_changes_the_network_gets_a_copy():
    workload = Workload()
    before = repr(workload.network(tiny()))
    workload.check(jobs_of_plans([("a", tiny("hat"))], Path()))
    assert repr(workload.network(tiny())) == before
