"""--tensorboard writes curves that TensorBoard reads back, whatever happened to the run."""

import json
import shutil
import sys

import pytest

from classgrad import cli
from classgrad.checkpoints import CheckpointManager, Store
from classgrad.runs import events
from classgrad.training.loop import Loop

SMALL = ["--set", "tasks=5", "--set", "train_per_class=16", "--set", "batch_size=5"]
WORDS = ["run", "split-digits", "--method", "gpm", *SMALL, "--set", "epochs=4", "--tensorboard"]


def curves(folder):
    """Return what TensorBoard shows of a run: (step, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {
        name: [(point.step, point.value) for point in result.Scalars(name)]
        for name in result.Tags()["scalars"]
    }


def folder_in(place):
    (folder,) = [path for path in (place / "runs").iterdir() if path.is_dir()]
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The curves of a run that nothing happened to, and its record."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "argv", ["classgrad", *WORDS])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
    folder = folder_in(place)
    return curves(folder), json.loads((folder / "record.json").read_text())


def test_curves_are_those_of_the_record(whole):
    result, record = whole
    steps = [step for step, _ in result["training/loss"]]
    assert steps == list(range(10, steps[-1] + 1, 10))  # one in ten, through all tasks
    last = [step for step, _ in result["summary/ACC"]]
    assert len(last) == 5
    assert last[-1] - steps[-1] < 10
    per_task = last[0]
    assert last == [number * per_task for number in range(1, 6)]
    rates = dict(result["training/learning_rate"])
    assert rates.keys() == set(steps)
    assert rates[10] > rates[per_task // 10 * 10]  # falls within a task
    assert result["summary/ACC"][-1][1] == pytest.approx(record["average_accuracy"])
    assert [step for step, _ in result["summary/BWT"]] == last[1:]  # there is none of one task
    assert result["summary/BWT"][-1][1] == pytest.approx(record["backward_transfer"])
    for task, name in enumerate(record["tasks"]):
        points = result[f"accuracy/{task + 1} {name}"]
        assert [step for step, _ in points] == last[task:]
        wanted = [row[task] for row in record["accuracy_matrix"][task:]]
        assert [value for _, value in points] == pytest.approx(wanted)
    for layer in record["layers"]:
        shares = [rank / layer["dimension"] for rank in layer["ranks"]]
        assert [value for _, value in result[f"in_use/{layer['name']}"]] == pytest.approx(shares)
    assert len(result) == 4 + 5 + len(record["layers"])


@pytest.mark.parametrize("number", [7, 45])
def test_a_run_that_was_stopped_has_the_curves_of_one_that_was_not(
    number, call, stopped, whole, tmp_path
):
    stopped(number, *WORDS)
    assert call(*WORDS)[0] == 0
    assert curves(folder_in(tmp_path)) == whole[0]
    assert len(list((folder_in(tmp_path) / "tensorboard").iterdir())) == 2


def test_what_came_after_the_state_that_is_resumed_is_replaced(call, whole, tmp_path, monkeypatch):
    """As after a power cut: curves reach the last step, the state does not."""

    class PowerCut(BaseException):
        pass

    step, seen = Loop.step, []

    def failing(self, *given):
        seen.append(1)
        if len(seen) == 33:
            raise PowerCut
        return step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", failing)
        with pytest.raises(PowerCut):
            call(*WORDS, "--save-steps", "9")
    before = curves(folder_in(tmp_path))["training/loss"]
    assert [point[0] for point in before] == [10, 20, 30]
    assert call(*WORDS)[0] == 0
    assert curves(folder_in(tmp_path)) == whole[0]


def test_a_fresh_start_replaces_all_curves(call, whole, tmp_path):
    for words in (WORDS, [*WORDS, "--fresh"]):
        assert call(*words)[0] == 0
        assert curves(folder_in(tmp_path)) == whole[0]


def test_curves_are_on_disk_when_the_state_is(call, tmp_path, monkeypatch):
    flush, flushed, seen = events.Events.flush, [], []
    save = CheckpointManager.save

    def watched_flush(self):
        flush(self)
        flushed.append(1)

    def watched_save(self, state):
        assert flushed
        flushed.clear()
        seen.append((state["steps"], curves(self.store.folder.parent)["training/loss"][-1][0]))
        save(self, state)

    monkeypatch.setattr(events.Events, "flush", watched_flush)
    monkeypatch.setattr(events.Events, "task", lambda *_: None)  # it flushes, too
    monkeypatch.setattr(CheckpointManager, "save", watched_save)
    assert call(*WORDS, "--save-steps", "10")[0] == 0
    assert len(seen) > 3
    assert all(steps - written < 10 for steps, written in seen)


def test_without_the_option_nothing_is_written(call, tmp_path):
    assert call(*WORDS[:-1])[0] == 0
    assert not (folder_in(tmp_path) / "tensorboard").exists()


def test_steps_are_counted_from_zero_in_a_state_of_an_earlier_version(
    call, stopped, tmp_path, monkeypatch
):
    stopped(7, *WORDS)
    store = Store(folder_in(tmp_path) / "checkpoints")
    state = store.load().state
    assert state.pop("steps") == 7
    store.save(state)
    assert call(*WORDS)[0] == 0
    assert curves(folder_in(tmp_path))["training/loss"][0][0] == 10


def test_without_the_package_one_line_says_what_to_install(call, tmp_path, monkeypatch):
    monkeypatch.setattr(events, "find_spec", lambda name: None)
    code, out, err = call(*WORDS)
    assert (code, out) == (2, "")
    assert err == (
        "classgrad: TensorBoard curves need a package that is not installed: pip install "
        "'classgrad[tensorboard]'\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(call, tmp_path):
    assert call(*WORDS)[0] == 0
    folder = folder_in(tmp_path)
    shutil.rmtree(folder / "tensorboard")
    (folder / "tensorboard").write_text("in the way")
    code, _, err = call(*WORDS, "--fresh")
    assert code == 2
    assert err.startswith(f"classgrad: cannot write to 'runs/{folder.name}/tensorboard': ")
    assert err.count("\n") == 1
