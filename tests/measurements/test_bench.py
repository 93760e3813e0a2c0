"""The benchmarks: references that agree with the library, honest times, and what is written."""

import json
import mmap
import time

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import (
    bases,
    epoch,
    evaluation,
    learner,
    memory,
    pillow,
    projecting,
    saving,
    startup,
    steps,
    timing,
)
from benchmarks.learner import Learner, flops, random_basis
from benchmarks.references import columns, extended, refined, without_groups
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.smooth import smooth_images
from benchmarks.timing import Bench
from classgrad import CGP, attach
from classgrad.core.projector import PROBED_ROWS, Projection
from classgrad.core.subspace import Representation, Subspace
from classgrad.data.augmix import augmix
from classgrad.methods.projection.refining import READINGS, ClassInput, Groups, Refining
from oracles.models import built
from oracles.projection import leak

DIMENSIONS = {"conv1": 48, "conv2": 576, "conv3": 512, "fc1": 1024, "fc2": 2048}


@pytest.fixture
def small_ranks(monkeypatch):
    """Bases of five directions, because those of the record take seconds to draw."""
    ranks = {name: (dimension, 5) for name, dimension in DIMENSIONS.items()}
    groups = {name: learner.Grouped(d, 10, [0, 1, 0]) for name, d in DIMENSIONS.items()}
    monkeypatch.setattr(learner, "ranks_after", lambda tasks: ranks)
    monkeypatch.setattr(learner, "groups_after", lambda tasks: groups)


class Measured(Bench):
    """A bench that calls nothing and has these times."""

    def __init__(self, **seconds):
        super().__init__()
        self.seconds = seconds

    def alternate(self, calls, rounds, **options):
        return {name: timing.Timing(self.seconds[name.replace(" ", "_")], 1) for name in calls}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def gradient(rows: int, dimension: int) -> torch.Tensor:
    return torch.randn(rows, dimension, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rank", [3, 9])
@pytest.mark.parametrize("count", [1, 3])
def test_projection_by_orthogonal_groups_is_that_of_the_library(rank, count):
    basis = random_basis(12, rank)
    g = gradient(7, 12)
    groups = [(part @ part.T).float() for part in basis.tensor_split(count, dim=1)]
    reference = without_groups({"layer": g}, {"layer": groups})["layer"]
    ours = Projection(Subspace(basis), g).project(g)
    assert (reference - ours).norm() < 1e-5 * ours.norm()
    assert (reference - g).norm() > 0.1 * g.norm()


def test_bases_by_loops_are_those_of_the_library():
    model = built(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, bias=False),
            nn.ReLU(),
            nn.Conv2d(4, 6, 2, bias=False),
            nn.Flatten(),
            nn.Linear(54, 3, bias=False),
        )
    )
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, 10, 10, generator=rng, dtype=torch.float64)
    x[30:] *= torch.rand(30, 2, 10, 10, generator=rng, dtype=torch.float64)
    y = torch.arange(30) % 3
    guard = attach(
        model, CGP(reading="pooled", similarity=-1, correct_only=False, energy=0.9, samples=8)
    )
    guard.end_task([(x[:30], y)])
    before = {name: subspace.basis.numpy() for name, subspace in guard.method.subspaces.items()}
    share = guard.method.thresholds()["0"]
    guard.end_task([(x[30:], y)])
    inputs = {"0": x[30:], "2": model[:2](x[30:]), "4": model[:4](x[30:])}
    for name, subspace in guard.method.subspaces.items():
        basis = before[name]
        for label in range(3):
            own = inputs[name].detach()[y == label][:8].numpy()
            basis = refined(basis, columns(model.get_submodule(name), own), share)
        assert before[name].shape[1] <= basis.shape[1] == subspace.rank <= subspace.dimension
        assert name != "4" or before[name].shape[1] < subspace.rank < subspace.dimension
        ours = (subspace.basis @ subspace.basis.T).numpy()
        assert np.abs(basis @ basis.T - ours).max() < 1e-6


@pytest.mark.parametrize("energy", [0.7, 0.9, 0.99])
def test_groups_extended_by_loops_are_those_of_the_library(energy):
    groups = Groups()
    for group in range(2):
        groups.open()
        groups.join(group, torch.ones(3), 1.0)
        groups.bases.append(random_basis(12, 4, seed=group))
    rng = torch.Generator().manual_seed(2)
    rows = torch.randn(30, 12, generator=rng, dtype=torch.float64) * torch.arange(1, 13) ** 1.5
    before = [basis.numpy() for basis in groups.bases]
    whole = Subspace(groups.bases[0]).extended(groups.bases[1])
    refining = Refining(whole, groups, READINGS["released"], lambda c: energy, similarity=-1)
    refining.learn([ClassInput(torch.ones(3), Representation.of(rows))], first_task=False)
    for basis, ours in zip(before, groups.bases, strict=True):
        reference = extended(basis, rows.numpy().T, energy)
        assert 4 < reference.shape[1] == ours.shape[1] < 12
        assert np.abs(reference @ reference.T - (ours @ ours.T).numpy()).max() < 1e-9


@pytest.fixture
def few_directions(monkeypatch):
    """Bases of three directions, in `released` two for every layer."""
    few = {name: random_basis(dimension, 3) for name, dimension in DIMENSIONS.items()}
    two = {name: [basis, random_basis(len(basis), 3, seed=1)] for name, basis in few.items()}
    state = {"learnt": 9, "bases": few, "frozen": []}
    groups = {name: {"bases": own} for name, own in two.items()}
    monkeypatch.setattr(bases.Task, "_other_inputs", lambda self: [])
    monkeypatch.setattr(bases, "state_of_one", lambda other: {**state, "groups": {}})
    monkeypatch.setattr(bases, "state_of_groups", lambda other: {**state, "groups": groups})


@pytest.mark.parametrize(("reading", "groups"), [("algorithm", 1), ("released", 2)])
def test_the_loops_see_the_layers_and_samples_of_the_recipe(
    few_directions, monkeypatch, reading, groups
):
    seen = []

    def watch(basis, matrix, energy):
        seen.append((*matrix.shape, energy))
        return basis

    monkeypatch.setitem(bases.READINGS, reading, watch)
    monkeypatch.setattr(bases, "SAMPLES", 110)
    bases.Task().by_loops(1, reading)
    # Dimension x samples * positions of each layer, at the share of the last task.
    sizes = [(48, 24 * 841), (576, 100 * 144), (512, 100 * 25), (1024, 110), (2048, 110)]
    share = pytest.approx(0.97 + 9 * 0.003)
    assert seen == [(*size, share) for size in sizes for _ in range(groups)]


def test_groups_so_far_have_the_strongest_directions_of_other_images(monkeypatch):
    few = {name: learner.Grouped(d, 8, [0, 1, 0, 1]) for name, d in DIMENSIONS.items()}
    monkeypatch.setattr(bases, "groups_after", lambda tasks: few)
    monkeypatch.setattr(
        bases, "ranks_after", lambda tasks: {n: (d, 8) for n, d in DIMENSIONS.items()}
    )
    monkeypatch.setattr(bases, "SAMPLES", 12)
    task = bases.Task()
    one, two = task.states["algorithm"], task.states["released"]
    for name, dimension in DIMENSIONS.items():
        assert one["bases"][name].shape == (dimension, 8)
        first, second = two["groups"][name]["bases"]
        assert first.shape == second.shape == (dimension, 4)
        assert two["bases"][name].shape[1] > 4  # that of all groups
    task.prepare("released")
    method = task.ours()
    for name, groups in method.groups.items():
        assert groups.count == 2
        assert len(groups.group_of) == 4 + 10
        assert all(basis.shape[1] >= 4 for basis in groups.bases)
        assert method.subspaces[name].rank >= two["bases"][name].shape[1]


def test_augmix_with_pillow_alters_images_as_much_as_ours():
    images = smooth_images(300)
    floats = images / 255
    pictures = [pillow.to_pillow(image) for image in images]
    reference = pillow.augmix(pictures, np.random.default_rng(0))
    ours = augmix(floats, generator=torch.Generator().manual_seed(0))
    assert reference.shape == ours.shape
    assert reference.dtype == ours.dtype
    assert 0 <= reference.min() <= reference.max() <= 1 + 1e-6
    changes = [float((made - floats).abs().mean()) for made in (reference, ours)]
    assert changes[0] == pytest.approx(changes[1], rel=0.15)
    assert changes[0] > 0.02


def test_augmix_with_pillow_gives_the_image_back_where_nothing_changes():
    images = smooth_images(3)[:, :, :8, :8]  # too few pixels for a histogram to be flattened
    pictures = [pillow.to_pillow(image) for image in images]
    made = pillow.augmix(pictures, np.random.default_rng(0), operations=["equalize"])
    assert (made - images / 255).abs().max() < 1e-6


def test_calls_take_turns_and_the_best_time_of_each_counts(clock):
    order, done = [], []
    seconds = {"a": iter([9, 5, 2, 4, 3]), "b": iter([1, 7, 6])}

    def call(name):
        order.append(name)
        clock(next(seconds[name]))

    bench = Bench(watch=done.append)
    calls = {"a": lambda: call("a"), "b": lambda: call("b")}
    result = bench.alternate(calls, rounds=2, turn=2, slow={"b": 3})
    assert order == ["a", "a", "a", "b", "b", "a", "a", "b"]  # the first to warm up
    assert result == {"a": timing.Timing(2, 4), "b": timing.Timing(1, 3)}
    assert done == [0.5, 1.0]


def test_a_quick_bench_does_few_rounds():
    calls = {"a": lambda: None, "slow": lambda: None}
    result = Bench(quick=True).alternate(calls, rounds=30, turn=2, slow={"slow": 5})
    assert {name: timing.repeats for name, timing in result.items()} == {"a": 6, "slow": 1}


def test_when_its_time_is_over_a_bench_has_two_rounds_of_all_calls(clock):
    calls = {"a": lambda: clock(3), "b": lambda: clock(2)}
    for seconds, repeats in ((10, 2), (17, 3), (100, 4)):
        result = Bench(seconds=seconds).alternate(calls, rounds=4)
        assert result == {"a": timing.Timing(3, repeats), "b": timing.Timing(2, repeats)}


@pytest.mark.parametrize(
    ("method", "options", "seed"),
    [
        ("gpm", {}, 0),
        ("cgp", {}, 0),
        ("owm", {}, 0),
        # Of the groups, the last is the one that nothing is left of.
        ("cgp", {"reading": "released"}, 1),
    ],
)
def test_the_step_that_is_timed_keeps_out_of_the_bases(small_ranks, method, options, seed):
    for protect in (True, False):
        one = Learner(method, 1, protect=protect, **options)
        before = {name: w.detach().clone() for name, w in one.net.trunk.named_parameters()}
        one.step()
        for name, dimension in DIMENSIONS.items():
            change = one.net.get_parameter(f"trunk.{name}.weight") - before[f"{name}.weight"]
            leaks = leak(change.reshape(len(change), -1), random_basis(dimension, 5, seed))
            assert leaks < 1e-5 if protect else leaks > 1e-2
        old = one.net.get_parameter("trunk.bn1.scale_0")
        assert old.equal(before["bn1.scale_0"])
        assert not one.net.get_parameter("trunk.bn1.scale_1").equal(before["bn1.scale_1"])


def test_soft_steps_are_compared_with_those_that_cost_the_same_otherwise(monkeypatch):
    made = []

    class Stub:
        step = None

        def __init__(self, method, learnt=10, **options):
            made.append((method, learnt, options))

    monkeypatch.setattr(steps, "Learner", Stub)
    times = {f"{m}_{when}": 1.0 for m in steps.METHODS for when in ("late", "bare", "early")}
    times |= {"finetune": 1.0, "trgp": 1.8, "owm": 1.1, "cgp_bare": 2.0, "released": 2.2}
    rows = {row.what: row for row in steps.measure(Measured(**times))}
    assert ("cgp", 10, {"reading": "released"}) in made
    released = rows["step of cgp released: with / without projection"]
    owm = rows["step of owm / step of finetune"]
    for row in (released, owm):
        assert row.figure == pytest.approx(1.1)
        assert str(row.bound) == "<= 1.15"


def test_what_is_timed_as_projection_is_all_of_it(small_ranks):
    ours = projecting.Projection(Learner("gpm", 1))
    rows = {"conv1": 64, "conv2": 128, "conv3": 256, "fc1": 64, "fc2": 64}  # outputs or batch
    # Two products of some rows of a gradient and a vector for each of fc1, fc2.
    leaks = 4 * PROBED_ROWS * (1024 + 2048)
    projecting_rows = sum(4 * rows[name] * d * 5 for name, d in DIMENSIONS.items())
    assert flops(ours) == projecting_rows + leaks
    with_it = flops(Learner("gpm", 1).step)
    assert with_it - flops(Learner("gpm", 1, protect=False).step) == flops(ours)


def test_ranks_are_those_of_the_recorded_run():
    assert learner.ranks_after(1)["fc2"] == (2048, 576)
    late = learner.ranks_after(10)
    assert {name: dimension for name, (dimension, _) in late.items()} == DIMENSIONS
    assert late["fc2"] == (2048, 1587)


def test_groups_are_those_of_a_recorded_run():
    late = learner.groups_after(10)
    assert {name: layer.dimension for name, layer in late.items()} == DIMENSIONS
    assert {len(layer.group_of) for layer in late.values()} == {100}
    assert {len(layer.group_of) for layer in learner.groups_after(9).values()} == {90}
    assert (len(late["conv1"].ranks), late["fc1"].ranks) == (20, [508])
    assert late["fc2"].ranks == [1024, 1024]


def test_evaluation_of_a_run_is_the_sum_of_its_batches():
    times = {f"free_{count}": float(count) for count in range(1, 11)}
    batch, every, end = evaluation.measure(Measured(known=1.0, means=0.5, **times))
    assert batch.figure == 10
    # After n tasks, n batches with the task known, one for class means, and n that take n seconds.
    never = 55 + 10 * 0.5
    assert every.figure == pytest.approx((never + 385) / never)
    assert end.figure == pytest.approx((never + 100) / never)
    assert (every.reference.value, end.reference.value) == (never, never)
    assert not every.bound.reached(every.figure)


def test_what_is_timed_as_evaluation_is_one_batch_of_all_tasks_so_far(monkeypatch):
    seen = []

    def watch(net, known, tasks, tests):
        seen.append([(task.id, len(test)) for task, test in zip(tasks, tests, strict=True)])
        assert len(known.tasks) == len(known.prototypes) == len(tasks)
        return evaluate(net, known, tasks, tests)

    evaluate = evaluation.evaluate_task_free
    monkeypatch.setattr(evaluation, "evaluate_task_free", watch)
    learnt = evaluation.Learnt()
    assert learnt.net.task_dependent
    learnt.task_free(3)
    learnt.task_free(1)
    assert seen == [[(0, 22), (1, 21), (2, 21)], [(0, 64)]]
    assert [len(task.train) for task in learnt.tasks] == [64] * 10


def test_time_inside_a_part_counts_for_the_inner_one(clock):
    parts = epoch.Parts()
    inner = parts.timed("augmentation", lambda: clock(2))

    def outer():
        clock(3)
        inner()
        clock(4)

    parts.timed("forward", outer)()
    parts.timed("backward", lambda: clock(5))()
    spent = {name: seconds for name, seconds in parts.seconds.items() if seconds}
    assert spent == {"forward": 7, "augmentation": 2, "backward": 5}


def test_every_part_of_an_epoch_is_found(small_ranks, monkeypatch):
    monkeypatch.setattr(learner, "BATCH", 4)  # images per class: one step in all
    (row,) = epoch.measure(Bench(quick=True))
    assert all(seconds > 0 for seconds in row.details["seconds"].values())
    everything = row.ours.value + sum(row.details["seconds"].values())
    assert everything - row.details["seconds"]["projection"] == pytest.approx(row.reference.value)
    assert 0 < row.figure < 0.5


def test_what_is_timed_as_a_save_is_all_of_a_state(small_ranks, tmp_path):
    one = Learner("cgp", 1)
    one.step()
    run = saving.run_at(one, tmp_path)
    run.checkpoints.after_step(run.state_dict)
    assert run.checkpoints.load() is None  # it is not time yet
    run.checkpoints.save(run.state_dict({**one.loop.state_dict(), "round": 0}))
    state = run.checkpoints.load().state
    assert {name: len(basis) for name, basis in state["method"]["bases"].items()} == DIMENSIONS
    kept = state["unfinished"]["optimizer"]
    moving = [p for p in one.loop.parameters if p.grad is not None]
    assert sum(part["momentum_buffer"].numel() for part in kept if part) == sum(
        p.numel() for p in moving
    )
    for name, value in one.net.state_dict().items():
        assert state["unfinished"]["net"][name].equal(value)


def test_saves_are_set_beside_five_minutes_and_asking_beside_a_step(
    small_ranks, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    save, ask = saving.measure(Bench(quick=True))
    assert save.reference.value == 300
    assert save.details["bytes"] > 4 * 2 * 6_499_328  # weights and momentum
    assert save.figure == save.ours.value / 300
    assert 0 < ask.figure < 0.01
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_computes_counts_and_its_waiting_does_not():
    compute = "import time\nwhile time.process_time() < 0.2: pass"
    spent = [
        timing.timed(startup.process("-c", code), startup.processor_time)
        for code in ("import time; time.sleep(0.5)", compute)
    ]
    assert 0 < spent[0] < 0.15
    assert 0.2 <= spent[1] < 0.5


def test_commands_are_measured_beside_the_import_of_torch(monkeypatch):
    spent, started = [0.0], []
    seconds = {"--help": 0.2, "list": 0.6, "predict": 3.0, "import torch": 1.5}

    def process(*words):
        started.append(words)
        (name,) = seconds.keys() & set(words)
        return lambda: spent.__setitem__(0, spent[0] + seconds[name])

    monkeypatch.setattr(startup, "process", process)
    monkeypatch.setattr(startup, "processor_time", lambda: spent[0])
    monkeypatch.setattr(startup, "save_learner", lambda state, photo: None)
    *rows, beside = startup.measure(Bench())
    assert [row.ours.value for row in rows] == pytest.approx([0.2, 0.6, 3.0])
    assert [row.bound.reached(row.figure) for row in rows] == [True, False, False]
    assert beside.figure == pytest.approx(2)
    assert [len(words) for words in started] == [3, 3, 5, 2]  # predict has a state and a photo


def test_the_learner_of_the_start_up_predicts_its_photo(call, tmp_path):
    state, photo = tmp_path / "state", tmp_path / "photo.jpg"
    startup.save_learner(state, photo)
    code, out, _ = call("predict", str(state), str(photo), "--json")
    assert code == 0
    (answer,) = json.loads(out)
    assert answer["classes"][0]["task"] == "task"


def test_memory_in_use_and_its_peak_are_in_bytes():
    before = memory.resident_bytes()
    with mmap.mmap(-1, 50_000_000) as block:
        block.write(b"1" * 50_000_000)
        assert memory.resident_bytes() - before > 40_000_000
    assert memory.peak_bytes() >= before + 40_000_000


def test_a_bound_is_reached_on_its_side():
    assert Bound(1.1).reached(1.1)
    assert not Bound(1.1).reached(1.2)
    assert Bound(50, at_least=True).reached(50)
    assert not Bound(50, at_least=True).reached(49)
    assert str(Bound(50, at_least=True, aim=100)) == ">= 50, aim 100"
    assert str(Bound(400, unit="MB")) == "<= 400 MB"


def fake(bench):
    fast, slow = Quantity(0.002, "s", 7), Quantity(0.5)
    return [
        Row.slower("slow / fast", fast, slow, bound=Bound(300, at_least=True), note="a remark"),
        Row.share("fast / slow", fast, slow, details={"flops": 12}),
        Row("memory", Quantity(312, "MB"), None, 312, bound=Bound(400, unit="MB")),
    ]


@pytest.fixture
def bench_command(monkeypatch):
    """Call the command line with one measurement that takes no time."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(steps, "measure", fake)
    return lambda *words: CliRunner().invoke(command.app, words)


def test_the_table_and_the_file_say_what_was_measured(bench_command, tmp_path):
    path = tmp_path / "figures.json"
    ended = bench_command("--only", "steps", "--out", str(path))
    assert ended.exit_code == 0, ended.output
    lines = [line.split() for line in ended.output.splitlines()]
    assert ["slow", "/", "fast", "2", "ms", "500", "ms", "250", ">=", "300", "no"] in lines
    assert ["fast", "/", "slow", "2", "ms", "500", "ms", "0.004", "-", "-"] in lines
    assert ["memory", "312", "MB", "-", "-", "<=", "400", "MB", "yes"] in lines
    assert "steps: a remark" in ended.output
    result = json.loads(path.read_text())
    assert {"cpu", "threads", "load"} < result["machine"].keys()
    assert {"command", "date", "quick", "versions"} < result.keys()
    slow, fast, peak = result["measurements"]["steps"]
    assert slow["ours"] == {"value": 0.002, "unit": "s", "repeats": 7}
    assert (slow["figure"], slow["required"], slow["reached"]) == (250, ">= 300", False)
    assert (fast["flops"], fast["reached"], peak["reference"]) == (12, None, None)


def test_only_a_whole_run_replaces_the_figures(bench_command, monkeypatch, tmp_path):
    path = tmp_path / "results.json"
    monkeypatch.setattr(command, "RESULTS", path)
    monkeypatch.setattr(command, "MEASUREMENTS", {"steps": 1})
    for words in (["--only", "steps"], ["--quick"]):
        assert bench_command(*words).exit_code == 0
        assert not path.exists()
    assert bench_command().exit_code == 0
    assert path.exists()


def test_a_misspelt_measurement_is_named():
    with pytest.raises(command.UserError, match="unknown measurement 'base': did you mean 'bases'"):
        command.parse_names("steps,base")
    with pytest.raises(command.UserError, match="--only names no measurement"):
        command.parse_names(" , ")


def test_all_is_measured_unless_something_is_named():
    assert command.parse_names(None) == list(command.MEASUREMENTS)
    assert command.parse_names("saving, steps") == ["saving", "steps"]
    assert sum(command.MEASUREMENTS.values()) < 4 * 60
