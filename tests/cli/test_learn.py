"""The command line of a learner: learn, predict, info, forget; stopped, killed, and misused."""

import csv
import io
import json
import re
import shutil
import signal
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from classgrad import Learner, cli
from classgrad.cli import info
from classgrad.networks.network import preserved_rng
from commands import one_line, started
from photos import kept, photos

SMALL = ["--network", "mlp", "--size", "8", "--set", "contrast=0", "--set", "width=24"]
QUICK = [*SMALL, "--set", "epochs=4", "--set", "batch_size=6", "--set", "learning_rate=0.1"]
BIRDS = ["learn", "state", "--task", "birds", "--images", "birds", *QUICK]
LONG = [word.replace("epochs=4", "epochs=150") for word in BIRDS]
FISH = ["learn", "state", "--task", "fish", "--images", "fish"]


def until_saved(process, place):
    """Wait until a process has saved something in the middle of a task."""
    end = time.monotonic() + 60
    while not list(place.glob("state/learning/checkpoints/0*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def everything_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path):
    """A folder with pictures of two tasks."""
    photos(tmp_path / "birds", "crow", "wren", seed=1)
    photos(tmp_path / "fish", "cod", "eel", "ray", seed=2)
    return tmp_path


@pytest.fixture(scope="module")
def learnt_once(tmp_path_factory):
    """The state of a learner of both tasks."""
    place = tmp_path_factory.mktemp("learnt")
    photos(place / "birds", "crow", "wren", seed=1)
    photos(place / "fish", "cod", "eel", "ray", seed=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for words in (BIRDS, FISH):
            patch.setattr(sys, "argv", ["classgrad", *words])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert not ended.value.code
    return place / "state"


@pytest.fixture
def learnt(learnt_once, place):
    """A place with a learner of both tasks."""
    shutil.copytree(learnt_once, place / "state")
    return place


def test_learning_says_what_came_of_it_and_saves(call, place):
    code, out, err = call(*BIRDS)
    assert (code, err) == (0, "")
    lines = {line[:11].strip(): line[11:] for line in out.splitlines()}
    assert lines["classes"] == "crow, wren"
    assert lines["accuracy"] == "100.0 % among the classes of this task"
    assert re.match(
        r"100.0 % among all 2 classes so far \(\d+\.\d to 100.0\), balanced, from 2 images",
        lines["task-free"],
    )
    assert re.match(
        r"about \d+ more classes \(\d+ to \d+ in 9 of 10 measured cases\), then layer fc\d is full",
        lines["free rank"],
    )
    assert lines["saved"] == "state"
    learner = Learner.load(place / "state")
    assert (learner.network, learner.size, learner.seed) == ("mlp", 8, 1)
    assert (learner.method.contrast, learner.training.epochs) == (0, 4)
    assert learner.network_options["width"] == 24
    assert sorted(path.name for path in (place / "state").iterdir()) == ["checkpoints"]


def test_a_later_task_needs_no_settings_and_may_change_those_of_training(call, place):
    call(*BIRDS)
    code, _, err = call(*FISH, "--set", "epochs=2")
    assert (code, err) == (0, "")
    learner = Learner.load(place / "state")
    assert [task.name for task in learner.tasks] == ["birds", "fish"]
    assert learner.training.epochs == 2
    assert learner.training.batch_size == 6
    assert learner.method.contrast == 0


def test_the_same_command_again_learns_nothing_and_says_so(call, learnt):
    before = everything_in(learnt / "state")
    code, out, _ = call(*BIRDS)
    assert code == 0
    assert "birds, learnt before from the same images" in out
    assert everything_in(learnt / "state") == before


def test_the_default_network_is_pretrained_and_stays_as_it_is(call, place):
    words = ["learn", "state", "--task", "birds", "--images", "birds"]
    code, _, err = call(*words, "--size", "32")
    assert (code, err) == (0, "")
    learner = Learner.load(place / "state")
    assert (learner.network, learner.size) == ("efficientnet-lite0", 32)
    assert (learner.tune, learner.ways) == ("none", ("statistics",))
    for more, what in (
        (["--set", "epochs=2"], "no layer learns: leave out settings of training"),
        (["--tune", "last"], "was created with tune=none: leave out --tune"),
    ):
        code, _, err = call(*FISH, *more)
        assert code == 2
        one_line(err, what)
    for more in (["--method", "gpm"], ["--set", "epochs=2"], ["--no-prototypes"]):
        code, _, err = call("learn", "other", *words[2:], *more)
        assert code == 2
        one_line(err, "(--tune last)")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed_resumes_to_the_same_bits(number, call, place):
    process = started(place, *LONG, "--save-steps", "40")
    until_saved(process, place)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert process.returncode == 143
        assert err == "classgrad: stopped; the same command resumes it\n"
        assert not (place / "state" / "lock.json").exists()
    else:
        assert process.returncode == -number
    assert list(place.glob("state/learning/checkpoints/0*/manifest.json"))
    code, out, err = call("info", "state")
    assert (code, err) == (0, "")
    assert "birds, the first task: repeat the command that was cut short to resume it" in out
    assert "cgp" in out
    assert "network    mlp, tune all, seed 1" in out
    about = json.loads(call("info", "state", "--json")[1])
    assert (about["tasks"], about["unfinished"]) == ([], "birds")
    assert about["settings"]["training"]["epochs"] == 150
    one_line(call("predict", "state", "birds/crow")[2], "'state' holds no learner")
    code, out, err = call(*LONG)
    assert (code, err) == (0, "")
    assert "resuming task 'birds', which was cut short" in out
    code, *_ = call("learn", "alone", *LONG[2:])
    assert code == 0
    assert kept(place / "state") == kept(place / "alone")


def test_a_second_process_is_refused_and_the_first_continues(call, place):
    process = started(place, *LONG, "--save-steps", "40")
    until_saved(process, place)
    process.send_signal(signal.SIGSTOP)  # it waits, so that it does not end too soon
    for words in (LONG, [*LONG, "--fresh"]):
        code, _, err = call(*words)
        assert code == 2
        one_line(err, f"'state' is in use by process {process.pid} on ")
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_a_task_cut_short_is_dropped_only_when_that_is_asked_for(call, stopped, learnt):
    photos(learnt / "bugs", "ant", "bee", seed=3)
    bugs = ["learn", "state", "--task", "bugs", "--images", "bugs"]
    err = stopped(3, *bugs)
    one_line(err, "stopped; the same command resumes it")
    code, out, _ = call("info", "state", "--json")
    assert (code, json.loads(out)["unfinished"]) == (0, "bugs")
    photos(learnt / "pets", "cat", "dog", seed=4)
    pets = ["learn", "state", "--task", "pets", "--images", "pets"]
    for words, what in (
        (pets, "task 'bugs' was cut short with another task"),
        ([*bugs, "--set", "epochs=3"], "task 'bugs' was cut short with another training"),
        (["forget", "state", "--task", "birds", "--class", "crow"], "task 'bugs' was cut short"),
        ([*FISH, "--images", "pets", "--fresh"], "class 'cat' is not one of task 'fish'"),
    ):
        before = everything_in(learnt / "state")
        code, _, err = call(*words)
        assert code == 2
        one_line(err, what)
        assert everything_in(learnt / "state") == before
    code, out, _ = call(*pets, "--fresh")
    assert code == 0
    assert "resuming" not in out
    assert [task.name for task in Learner.load("state").tasks] == ["birds", "fish", "pets"]
    assert not (learnt / "state" / "learning" / "checkpoints").exists()


def test_a_first_task_cut_short_resumes_with_the_same_settings_only(call, stopped, place):
    stopped(3, *BIRDS)
    for words, what in (
        (["--set", "eta=0.5"], "method"),
        (["--seed", "2"], "data"),  # other images are kept apart for validation
        (["--set", "depth=3"], "network_options"),
    ):
        code, _, err = call(*BIRDS, *words)
        assert code == 2
        one_line(err, f"task 'birds' was cut short with another {what}: ")
    code, out, _ = call(*BIRDS)
    assert code == 0
    assert "resuming" in out


def test_a_first_task_cut_short_is_not_dropped_where_no_layer_learns(call, stopped, place):
    frozen = ["--network", "efficientnet-lite0", "--set", "weights=random", "--size", "32"]
    learn = [*BIRDS[:6], *frozen]
    stopped(1, *learn, "--tune", "last", "--set", "epochs=2")
    before = everything_in(place / "state")
    code, _, err = call(*learn)
    assert (code, everything_in(place / "state")) == (2, before)
    one_line(err, "task 'birds' was cut short with layers that learn, and now none does: ")
    assert "(--fresh starts again)" in err
    assert call(*learn, "--fresh")[0] == 0
    assert Learner.load("state").tune == "none"
    assert not (place / "state" / "learning" / "checkpoints").exists()


def test_killed_right_at_the_end_it_has_learnt_and_continues_with_the_next(
    call, place, monkeypatch
):
    """What is left of the middle of a task that was finished is not resumed."""
    from classgrad.checkpoints import CheckpointManager

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointManager, "clear", lambda self: None)
        assert call(*BIRDS, "--save-steps", "3")[0] == 0
    assert list(place.glob("state/learning/checkpoints/0*"))
    code, out, _ = call(*BIRDS)
    assert code == 0
    assert "learnt before" in out
    assert call("info", "state", "--json")[1].count('"unfinished": null') == 1
    shutil.copytree("state", "other")
    assert call("forget", "other", "--task", "birds", "--class", "crow")[0] == 0
    assert not (place / "other" / "learning" / "checkpoints").exists()  # it held the class
    assert call(*FISH)[0] == 0
    for words in (BIRDS, FISH):
        call("learn", "alone", *words[2:])
    assert kept(place / "state") == kept(place / "alone")


def test_a_class_of_one_image_and_a_task_of_one_class_are_warned_of(call, place):
    photos(place / "pets", "cat", count=1)
    words = ["--task", "pets", "--images", "pets", *QUICK]
    code, out, _ = call("learn", "state", *words)
    assert code == 0
    assert "class 'cat' has a single image, which its stored mean can reveal; give more" in out
    assert "start a learner with --no-prototypes" in out
    code, out, _ = call("learn", "fixed", *words[:4], "--size", "32")
    assert (code, "start a learner with --tune last --no-prototypes" in out) == (0, True)
    assert "'pets' holds a single class" in out
    assert "no validation data" in out
    code, out, _ = call("learn", "other", *words, "--no-prototypes")
    assert code == 0
    assert "single image" not in out
    assert not Learner.load("other").prototypes
    code, _, err = call("predict", "other", "pets/cat", "--by", "prototypes")
    assert code == 2
    one_line(err, "this learner has no prototypes")


def test_unreadable_images_are_listed_and_left_out_only_when_asked_for(call, place):
    (place / "birds" / "crow" / "bad.png").write_text("no image")
    code, _, err = call(*BIRDS)
    assert code == 2
    one_line(err, "bad.png", "--skip-bad")
    assert not (place / "state").exists()
    code, out, _ = call(*BIRDS, "--skip-bad")
    assert code == 0
    assert "skipped 'birds/crow/bad.png': cannot identify it" in out
    code, out, err = call("predict", "state", "birds/crow", "--skip-bad", "--json")
    assert code == 0
    assert len(json.loads(out)) == 10
    assert "skipped 'birds/crow/bad.png'" in err
    code, _, err = call("predict", "state", "birds/crow/bad.png", "--skip-bad")
    assert code == 2
    one_line(err, "no picture is left")


def test_an_image_that_cannot_be_read_has_a_row_that_says_why(call, learnt, place):
    (place / "birds" / "crow" / "04a.png").write_text("no image")
    words = ["predict", "state", "none.png", "birds/crow", "--top", "2"]
    code, out, err = call(*words, "--json")
    assert code == 0
    assert "2 of 12 images cannot be read" in err
    rows = json.loads(out)
    bad = {number: row for number, row in enumerate(rows) if row["error"]}
    assert [row["file"] for row in bad.values()] == ["none.png", "birds/crow/04a.png"]
    assert list(bad) == [0, 6]
    assert bad[0]["error"] == "No such file or directory"
    assert bad[6]["error"].startswith("cannot identify it as AVIF")
    assert not any(row["classes"] or row["known"] for row in bad.values())
    (place / "birds" / "crow" / "04a.png").unlink()
    sound = json.loads(call("predict", "state", "birds/crow", "--top", "2", "--json")[1])
    assert [row for row in rows if not row["error"]] == sound
    _, out, _ = call(*words, "--csv")
    header, first, *others = csv.reader(out.splitlines())
    assert header[-1] == "error"
    assert first == ["none.png", "", "", "", "false", "", "No such file or directory"]
    assert len(others) == 20
    assert all(row[-1] == "" for row in others)
    assert "cannot be read: No such" in call(*words)[1]
    code, out, err = call("predict", "state", "none.png")
    assert (code, out) == (2, "")
    one_line(err, "no picture is left: ", "none.png")


def test_predictions_are_a_table_json_or_csv(call, learnt):
    code, out, _ = call("predict", "state", "fish/eel", "birds/wren/00.png", "--task", "fish")
    assert code == 0
    assert out.count("fish/eel/") == 10
    assert "│ eel   │ fish │ 0." in out
    words = ["predict", "state", "fish/eel", "birds/wren/00.png", "--top", "3"]
    result = json.loads(call(*words, "--json")[1])
    assert [line["file"] for line in result][-2:] == ["fish/eel/09.png", "birds/wren/00.png"]
    assert [len(line["classes"]) for line in result] == [3] * 11
    expected = Learner.load("state").predict(["birds/wren/00.png"])[0].ranking[:3]
    assert result[-1]["classes"] == [
        {"class": one.name, "task": one.task, "probability": one.probability} for one in expected
    ]
    rows = list(csv.DictReader(io.StringIO(call(*words, "--csv")[1])))
    assert len(rows) == 33
    assert [(row["class"], row["task"]) for row in rows[-3:]] == [
        (one.name, one.task) for one in expected
    ]
    assert float(rows[-1]["probability"]) == expected[-1].probability
    assert call(*words, "--batch-size", "4")[0] == 0
    result = json.loads(call("predict", "state", "fish/ray", "--by", "prototypes", "--json")[1])
    assert [line["classes"][0]["class"] for line in result] == ["ray"] * 10


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("several", ["images", "sentences"])
def test_tables_of_a_learner_cut_nothing_on_a_narrow_terminal(place, learnt, several, width):
    name = "a task with a rather long name"
    learner = Learner.load(place / "state")
    interval = {"samples": 1234, "low": 83.2, "high": 100.0}
    tasks = [replace(task, name=name, interval=interval) for task in learner.tasks]
    console = Console(file=io.StringIO(), width=width)
    console.print(info.task_table(tasks, several, width), info.rank_table(learner.forecast()))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    words = " ".join(lines).split()
    for word in (*name.split(), several, "accuracy", "interval", "83.2", "100.0", "measured"):
        assert word in words
    assert {task.when[:10] for task in tasks} <= {*words}
    assert ("1,234" in words) == (width == 80)


def test_info_shows_tasks_ranks_memory_and_settings(call, learnt):
    code, out, _ = call("info", "state")
    assert code == 0
    for part in (
        "birds",
        "fish",
        "fc1",
        "more classes",
        "9 of 10",
        "on disk",
        "energy=0.97",
        "epochs=4",
    ):
        assert part in out
    assert "mlp, images 8 x 8, tune all, seed 1" in out
    result = json.loads(call("info", "state", "--json")[1])
    learner = Learner.load("state")
    assert [task["class_names"] for task in result["tasks"]] == [
        ["crow", "wren"],
        ["cod", "eel", "ray"],
    ]
    assert [layer["rank"] for layer in result["free_rank"]] == [
        one.rank for one in learner.forecast()
    ]
    assert [layer["classes_left"] for layer in result["free_rank"]] == [
        one.classes_left for one in learner.forecast()
    ]
    weights = sum(value.nbytes for value in learner.net.state_dict().values())
    assert result["bytes"]["weights"] == weights
    assert result["bytes"]["method"] == learner.method.memory_bytes()
    files = everything_in(learnt / "state").values()
    assert result["bytes"]["disk"] == sum(map(len, files))


def test_a_forgotten_class_is_in_no_state_any_more(call, learnt):
    words = ["forget", "state", "--task", "fish", "--class", "eel"]
    code, out, _ = call(*words)
    assert code == 0
    assert "class 'eel' of task 'fish' is no longer predicted" in out
    assert "prototypes" in out
    assert "no direction is freed: classes learnt later may rely" in out
    assert "products of layers' inputs, which drift is told from, stays" in out
    code, out, _ = call("predict", "state", "fish/eel", "--top", "9", "--json")
    assert "eel" not in {one["class"] for line in json.loads(out) for one in line["classes"]}
    assert "of fish: eel (their directions stay protected)" in call("info", "state")[1]
    states = sorted((learnt / "state" / "checkpoints").iterdir())
    assert len(states) == 1
    for state in states:
        tasks = json.loads((state / "state.json").read_text())
        assert '"forgotten":["eel"]' in json.dumps(tasks, separators=(",", ":"))
    code, _, err = call("undo", "state")
    assert code == 2
    one_line(err, "nothing can be undone, and no forgotten class be brought back")
    code, _, err = call(*words)
    assert code == 2
    one_line(err, "unknown class of task 'fish' 'eel'", "cod, ray")
    for task, name in (("fish", "cod"), ("fish", "ray"), ("birds", "crow"), ("birds", "wren")):
        assert call("forget", "state", "--task", task, "--class", name)[0] == 0
    code, _, err = call("predict", "state", "fish/eel")
    assert code == 2
    one_line(err, "all classes that could be predicted are forgotten")
    code, out, _ = call("diff", "state", "state", "--images", "fish/eel")
    assert (code, "0 of 10 predictions differ" in out) == (0, True)


MODEL = """
from torch import nn
width = {width}

def trunk():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU())

def text():
    return "trunk"

def broken():
    raise RuntimeError("two" + chr(10) + "lines")
"""


def test_a_network_of_ones_own_is_found_from_where_one_is(call, place, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (place / "own_model.py").write_text(MODEL.format(width=16))
    (place / "other_model.py").write_text(MODEL.format(width=17))
    own = ["--model", "own_model:trunk"]
    words = [word for word in BIRDS if word not in ("--network", "mlp", "--set", "width=24")]
    words = [f"--set={word}" if "=" in word else word for word in words]
    code, _, err = call(*words, *own)
    assert (code, err) == (0, "")
    before = everything_in(place / "state")
    for model, what in (
        ([], "give it again (--model)"),
        (["--model", "other_model:trunk"], "the network is not the one that was saved"),
        (["--model", "own_model"], "--model takes package.module:name"),
        (["--model", "no_model:trunk"], "ModuleNotFoundError: No module named 'no_model'"),
        (["--model", "own_model:tree"], "has no attribute 'tree'"),
        (["--model", "own_model:text"], "makes a str"),
        (["--model", "own_model:broken"], "RuntimeError: two lines"),
    ):
        for command in (
            ["predict", "state", "birds/crow"],
            FISH,
            ["forget", "state", "--task", "birds", "--class", "crow"],
        ):
            code, _, err = call(*command, *model)
            assert code == 2
            one_line(err, what)
    assert everything_in(place / "state") == before
    code, out, _ = call("info", "state")
    assert code == 0
    assert "your own, images 8 x 8" in out
    assert call(*FISH, *own)[0] == 0
    # It may need another mean and deviation, from the first call on.
    normalised = ["--set", "mean=[0.4,0.5,0.6]", "--set", "deviation=0.2"]
    code, _, err = call("learn", "normalised", *words[2:], *own, *normalised)
    assert (code, err) == (0, "")
    assert "mean=[0.4, 0.5, 0.6] deviation=0.2" in call("info", "normalised")[1]
    assert call("learn", "normalised", *FISH[2:], *own)[0] == 0
    code, _, err = call("learn", "normalised", *FISH[2:], *own, "--set", "mean=0.5")
    one_line(err, "was created with mean=(0.4, 0.5, 0.6), not (0.5,)")
    code, _, err = call("learn", "new", *BIRDS[2:], "--set", "mean=0.5")
    one_line(err, "unknown setting for mlp 'mean'")
    code, out, _ = call("predict", "state", "birds/crow/00.png", "--task", "birds", *own)
    assert code == 0
    assert "crow" in out
    # The weights it starts with are those of the seed.
    for command in (words, FISH):
        call("learn", "again", *command[2:], *own)
    import own_model

    with preserved_rng():
        assert kept("state", own_model.trunk()) == kept("again", own_model.trunk())


CHANGES = {
    "network": (["--network", "lenet5"], "was created with mlp: leave out --network"),
    "method": (["--method", "gpm"], "was created with cgp: leave out --method"),
    "size": (["--size", "16"], "was created with 8: leave out --size"),
    "seed": (["--seed", "2"], "was created with 1: leave out --seed"),
    "prototypes": (["--no-prototypes"], "was created with prototypes"),
    "setting": (["--set", "eta=0.5"], "was created with similarity=0.7, not 0.5"),
    "network option": (["--set", "width=30"], "was created with width=24, not 30"),
    "another network option": (["--set", "depth=3"], "was created with depth=2, not 3"),
    "model": (["--model", "collections:OrderedDict"], "makes a OrderedDict"),
    "model for a network": (["--model", "torch.nn:ReLU"], "with network 'mlp': leave out --model"),
    "unknown setting": (["--set", "etta=1"], "did you mean 'eta'?"),
    "bad training": (["--set", "epochs=0"], "epochs must be greater than or equal to 1"),
    "bad layer": (["--images", "birds", "--task", "birds", "--size", "0"], "size"),
    "other images": (["--task", "birds"], "class 'ant' is not one of task 'birds'"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_differs_from_the_state_is_refused(call, learnt, case):
    words, message = CHANGES[case]
    before = everything_in(learnt / "state")
    photos(learnt / "bugs", "ant", "bee", seed=3)
    code, _, err = call("learn", "state", "--task", "bugs", "--images", "bugs", *words)
    assert code == 2
    one_line(err, message)
    assert everything_in(learnt / "state") == before


WRONG = {
    "no state to predict": (["predict", "nowhere", "birds"], "'nowhere' holds no learner"),
    "no state to tell of": (["info", "nowhere"], "'nowhere' holds no learner"),
    "no state to forget": (["forget", "nowhere", "--task", "a", "--class", "b"], "no learner"),
    "no images": (["learn", "new", "--task", "a", "--images", "none"], "'none' is not a folder"),
    "empty name": (["learn", "new", "--task", " ", "--images", "birds"], "--task is empty"),
    "no task": (["learn", "new", "--images", "birds"], "--task"),
    "pictures for a state": (["learn", "birds", *FISH[2:]], "'birds' holds 'crow'"),
    "a file for a state": (["learn", "file", *FISH[2:]], "'file' cannot be used: Not a dir"),
    "unknown network": (["learn", "new", *FISH[2:], "--network", "lenet"], "unknown network"),
    "unknown method": (["learn", "new", *FISH[2:], "--method", "cgpp"], "unknown method"),
    "method with samples": (
        ["learn", "new", *FISH[2:], "--network", "lenet5", "--method", "er"],
        "er keeps samples",
    ),
    "two networks": (["learn", "new", *FISH[2:], *QUICK, "--model", "a:b"], "contradict"),
    "two sizes": (["learn", "new", *FISH[2:], *SMALL, "--set", "size=9"], "--set size contradict"),
    "two precisions": (
        ["learn", "new", *FISH[2:], "--precision", "bfloat16", "--set", "precision=float32"],
        "--precision and --set precision contradict each other: give one of them",
    ),
    "small images": (
        ["learn", "new", *FISH[2:], "--network", "alexnet5", "--size", "8"],
        "needs images",
    ),
    "nothing to tune": (
        ["learn", "new", *FISH[2:], "--network", "mlp", "--tune", "none"],
        "has to learn all its layers",
    ),
    "unknown without statistics": (
        ["predict", "state", "birds/crow", "--by", "confidence", "--unknown", "0.05"],
        "--unknown needs class statistics",
    ),
    "layer that is not": (
        ["learn", "new", *FISH[2:], "--network", "lenet5", "--set", 'energy={"c": 1}'],
        "layer",
    ),
    "unknown task": (["predict", "state", "birds/crow", "--task", "bird"], "mean 'birds'"),
    "unknown way": (["predict", "state", "birds/crow", "--by", "magic"], "magic"),
    "no picture": (["predict", "state", "birds/crow/none.png"], "none.png"),
    "empty folder": (["predict", "state", "empty/dodo"], "'empty/dodo' holds no picture"),
    "two forms": (["predict", "state", "birds/crow", "--csv", "--json"], "contradict"),
    "forget an unknown task": (["forget", "state", "--task", "x", "--class", "crow"], "task 'x'"),
    "forget an unknown class": (["forget", "state", "--task", "birds", "--class", "x"], "'x'"),
    "empty class": (["learn", "state", "--task", "a", "--images", "empty"], "holds no picture"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_code_2_nothing_written(call, learnt, case):
    words, message = WRONG[case]
    (learnt / "file").write_text("mine")
    shutil.copytree(learnt / "birds", learnt / "empty")
    (learnt / "empty" / "dodo").mkdir()
    before = sorted(learnt.rglob("*")), everything_in(learnt)
    code, _, err = call(*words)
    assert code == 2
    one_line(err, message)
    assert (sorted(learnt.rglob("*")), everything_in(learnt)) == before


def test_a_newer_state_and_that_of_a_run_are_refused(call, learnt, monkeypatch):
    from classgrad.checkpoints import CheckpointManager, files

    CheckpointManager(learnt / "run").save({"plan": {}})
    with monkeypatch.context() as patch:
        patch.setattr(files, "SCHEMA_VERSION", 99)
        CheckpointManager(learnt / "state").save({"kind": "learner"})
    before = everything_in(learnt)
    for folder, message in (("state", "has schema 99, newer than"), ("run", "the state of a run")):
        for words in (
            ["learn", folder, *FISH[2:]],
            ["predict", folder, "birds/crow"],
            ["info", folder],
            ["forget", folder, "--task", "birds", "--class", "crow"],
        ):
            code, _, err = call(*words)
            assert code == 2
            one_line(err, message)
    assert everything_in(learnt) == before


def test_a_damaged_newest_state_is_reported(call, learnt):
    newest = max((learnt / "state" / "checkpoints").iterdir())
    (newest / "state.json").write_text("{}")
    for words in (["predict", "state", "birds/crow/00.png"], ["info", "state"], FISH):
        code, out, err = call(*words)
        assert code == 0
        assert f"{newest.relative_to(learnt)}' is damaged" in out + err


def test_every_command_has_help_with_an_example(call):
    for command in ("learn", "predict", "info", "forget"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "Example" in out


def test_a_required_accuracy_that_is_missed_ends_with_code_3(call, learnt):
    before = everything_in(learnt / "state")
    photos(learnt / "same", "this", "that", seed=3)
    for name in ("this", "that"):  # the same pictures twice, told apart by nothing
        for file in (learnt / "same" / name).iterdir():
            file.write_bytes((learnt / "birds" / "crow" / file.name).read_bytes())
    task = ["learn", "state", "--task", "same", "--images", "same", "--same-classes", "separate"]
    code, _, err = call(*task, "--require", "99")
    assert (code, everything_in(learnt / "state")) == (3, before)
    one_line(err)
    assert "99 % is required: nothing was saved" in err


def test_predictions_that_must_not_change_end_with_code_3(call, learnt):
    before = everything_in(learnt / "state")
    photos(learnt / "trees", "ash", "oak", seed=4)
    task = ["learn", "state", "--task", "trees", "--images", "trees"]
    code, _, err = call(*task, "--reference", "trees/ash", "--may-change", "1")
    assert (code, everything_in(learnt / "state")) == (3, before)
    one_line(err)
    assert "10 of 10 predictions for the reference images change" in err
    (learnt / "birds" / "crow" / "notes.txt").write_text("no picture")
    code, _, err = call(*task, "--reference", "birds/crow", "--may-change", "1")
    assert (code, "notes.txt" in err, "(--skip-bad)" in err) == (2, True, True)
    assert everything_in(learnt / "state") == before
    assert call(*task, "--reference", "birds/crow", "--may-change", "1", "--skip-bad")[0] == 0


def test_undo_and_diff(call, learnt):
    shutil.copytree(learnt / "state", learnt / "copy")
    code, out, _ = call("undo", "state")
    assert code == 0
    assert "undone: 'state' has 1 task, as of " in out
    assert "removed    fish/cod, fish/eel, fish/ray" in out
    assert "settings" not in out
    code, _, err = call("undo", "state")
    one_line(err)
    assert (code, "nothing can be undone" in err) == (2, True)
    code, out, _ = call("diff", "state", "copy", "--images", "birds/crow", "--images", "fish/cod")
    assert code == 0
    assert "added      fish/cod, fish/eel, fish/ray" in out
    assert "10 of 20 predictions differ" in out
    code, out, _ = call("diff", "state", "state", "--json", "--images", "birds/crow")
    found = json.loads(out)
    assert (found["added"], len(found["predictions"])) == ([], 10)
    assert call("diff", "state", "state")[1].startswith("no differences")


def test_more_states_can_be_kept(call, place):
    call(*BIRDS, "--keep", "3")
    call(*FISH)
    photos(place / "trees", "ash", "oak", seed=4)
    call("learn", "state", "--task", "trees", "--images", "trees")
    assert [call("undo", "state")[0] for _ in range(3)] == [0, 0, 2]
    assert [task.name for task in Learner.load(place / "state").tasks] == ["birds"]


@pytest.mark.parametrize("keep", [2, 7])
def test_how_many_states_are_kept_can_be_changed_without_learning(call, learnt, keep):
    call(*FISH, "--keep", "4")
    code, out, _ = call(*FISH, "--keep", str(keep))
    assert (code, "learnt before from the same images" in out) == (0, True)
    assert Learner.load(learnt / "state").kept_states == keep
    assert call("undo", "state")[0] == 0
    learner = Learner.load(learnt / "state")
    assert ([task.name for task in learner.tasks], learner.kept_states) == (["birds"], keep)


def test_without_statistics_the_interval_is_printed_too(call, place):
    code, out, _ = call(*BIRDS, "--no-prototypes")
    assert code == 0
    found = re.search(r"accuracy   100.0 % \((\d+\.\d to 100.0), from 2 images\) on val", out)
    assert found
    assert re.search(rf"100.0 +{found[1]} +2\b", call("info", "state")[1])


def test_merged_and_forgotten_classes_are_not_counted(call, learnt):
    photos(learnt / "more", "cod", seed=2)
    words = ["learn", "state", "--task", "more", "--images", "more", "--same-classes", "merge"]
    code, out, _ = call(*words)
    assert (code, "among all 5 classes so far" in out) == (0, True)
    call("forget", "state", "--task", "fish", "--class", "eel")
    (learnt / "fish" / "eel").rename(learnt / "eel")
    photos(learnt / "new", "ray", seed=6)
    (learnt / "new" / "ray" / "00.png").rename(learnt / "fish" / "ray" / "new.png")
    code, out, _ = call(*FISH)
    assert (code, "1 of them new" in out) == (0, True)
    assert "among all 4 classes so far" in out
    assert not re.search("(weakest|unmeasured).*eel", out)


def test_a_task_of_single_images_is_measured_by_those_of_others(call, learnt):
    photos(learnt / "pets", "cat", "dog", count=1, seed=7)
    code, out, _ = call("learn", "state", "--task", "pets", "--images", "pets")
    assert code == 0
    assert "accuracy   no validation data" in out
    assert re.search(r"task-free  \d+\.\d % among all 7 classes so far", out)
    assert "unmeasured cat, dog: too few images" in out


def test_the_task_as_json(call, place):
    code, out, _ = call(*BIRDS, "--json")
    assert code == 0
    known = json.loads(out)
    assert (known["name"], known["class_names"]) == ("birds", ["crow", "wren"])
    assert known["recalls"] == {"crow": 100, "wren": 100}


def test_accents_may_be_composed_or_not(call, place):
    apart, composed = "cafe\u0301", "caf\u00e9"
    photos(place / "shops", apart, "bar", seed=5)
    assert call("learn", "state", "--task", apart, "--images", "shops", *QUICK)[0] == 0
    learner = Learner.load(place / "state")
    assert (learner.tasks[0].name, learner.tasks[0].class_names) == (composed, ["bar", composed])
    code, out, _ = call("learn", "state", "--task", apart, "--images", "shops")
    assert (code, "learnt before from the same images" in out) == (0, True)
    for task, name in [(apart, composed), (composed, apart)]:
        shutil.copytree(place / "state", place / f"copy {len(task)}")
        words = ["forget", f"copy {len(task)}", "--task", task, "--class", name]
        assert call(*words)[0] == 0
