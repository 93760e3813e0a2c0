"""What commands print while they work: lines, nothing, or messages, as in docs/reproduce.md."""

import io
import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from classgrad.cli.experiments import LineDisplay
from classgrad.cli.logs import JsonLog
from classgrad.experiments.jobs import Status, jobs_of_plans
from classgrad.report.page import pictures
from classgrad.report.text import bar, print_line
from classgrad.runs.spec import make_plan
from classgrad.training.log import EPOCH_INTERVAL
from commands import refused
from forked import Forked
from photos import photos

SETTINGS = {"tasks": 2, "train_per_class": 10, "batch_size": 25, "epochs": 3}
PAIRS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
RUN = ["run", "split-digits", "-m", "gpm", *PAIRS]
SWEEP = ["sweep", "-b", "split-digits", "-m", "gpm", *PAIRS, "--over", "seed=1,2"]
LEARN = ["learn", "state", "--task", "birds", "--images", "birds", "--network", "mlp"]
LEARN += ["--set", "epochs=2"]
DOCS = Path(__file__).parents[2] / "docs" / "reproduce.md"
RESULT = "directions in use"


def events(out, event=None):
    """Return the messages of standard output, or those of one kind."""
    messages = [json.loads(line) for line in out.splitlines()]
    return [message for message in messages if event in (None, message["event"])]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Drawing takes longer than all these runs."""
    monkeypatch.setattr(pictures, "draw_matrices", lambda records, file: file)


@pytest.fixture
def birds(tmp_path):
    return photos(tmp_path / "birds", "crow", "wren")


@pytest.fixture
def terminal(monkeypatch):
    """Let standard output pass for a terminal."""
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


# Lines.

# Waits in the second task until there is a file "go".
WAITING = """
import time
from pathlib import Path
from classgrad import cli
from classgrad.training.loop import Loop

step = Loop.step

def wait(self, *given):
    while self.newest_task and not Path("go").exists():
        time.sleep(0.01)
    return step(self, *given)

Loop.step = wait
cli.main()
"""


def test_lines_are_in_the_file_while_the_run_goes_on(tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    process = Forked([str(script), *RUN], tmp_path)
    try:
        end, (out, _) = time.monotonic() + 60, process._outputs
        while not out.exists() or "task 1/2 learnt in " not in out.read_text():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        assert out.read_text().count("\n") == 1
        assert process.poll() is None
    finally:
        (tmp_path / "go").touch()
        text, err = process.communicate(60)
    assert (process.returncode, err) == (0, "")
    lines = text.splitlines()
    assert re.fullmatch(r"gpm: task 1/2 learnt in [\d.]+ s: ACC [\d.]+ %.*", lines[0])
    assert re.fullmatch(r"gpm: task 2/2 learnt in [\d.]+ s: ACC [\d.]+ %, BWT [+-][\d.]+", lines[1])
    assert "learnt in" not in "".join(lines[2:])
    assert RESULT in text
    assert "━━━" not in "".join(lines[:2])  # no bar


@pytest.mark.parametrize("words", [RUN, SWEEP, ["reproduce", "tiny.toml"], LEARN])
def test_quiet_leaves_the_result(call, birds, words, tmp_path):
    lines = "".join(
        f'[[lines]]\nlabel = "{label}"\nmethod = "gpm"\nvalues = {{ tasks = 2, epochs = 3 }}\n'
        for label in ("A", "B")
    )
    head = 'title = "Tiny"\nsource = "a test"\nbenchmark = "split-digits"\ntolerance = 9\n'
    (tmp_path / "tiny.toml").write_text(head + lines)
    if words[0] in ("sweep", "reproduce"):
        words = [*words, "--dry-run"]  # whose result is the plan
    code, out, err = call(*words, "--quiet")
    assert (code, err) == (0, "")
    assert "learnt in" not in out
    assert {"run": RESULT, "learn": "accuracy "}.get(words[0], "to do: about") in out


def test_quiet_jobs_leave_the_table_of_results(call, monkeypatch):
    call(*RUN)
    words = ["sweep", "-b", "split-digits", "-m", "gpm", *PAIRS]
    assert "all runs are done" in call(*words)[1]
    code, out, _ = call(*words, "--quiet")
    assert code == 0
    assert "all runs are done" not in out
    assert "missing" not in out


@pytest.mark.parametrize(("words", "count"), [(RUN, 6), (LEARN, 2)])
def test_short_epochs_have_lines_only_if_they_are_asked_for(call, birds, words, count):
    out = call(*words)[1]
    assert (out.count("epoch "), out.count("learnt in")) == (0, 2 if words is RUN else 1)
    again = [*RUN, "--fresh"] if words is RUN else ["learn", "again", *LEARN[2:]]
    assert call(*again, "--verbose")[1].count("epoch ") == count


def test_the_runs_of_several_seeds_are_told_apart(call):
    code, out, _ = call(*RUN, "--seed", "1,2")
    assert code == 0
    for seed in (1, 2):
        assert f"gpm, seed {seed}: task 2/2 learnt in " in out


def test_with_json_the_lines_are_on_standard_error(call):
    code, out, err = call(*RUN, "--json")
    assert code == 0
    assert json.loads(out)["complete"]
    assert [line.partition(" learnt")[0] for line in err.splitlines()] == [
        "gpm: task 1/2",
        "gpm: task 2/2",
    ]


def test_on_a_terminal_there_is_a_bar_or_what_is_asked_for(call, terminal):
    def printed(*words):
        return re.sub(r"\x1b\[[\d;?]*\w", "", call(*RUN, "--fresh", *words)[1])

    out = printed()
    assert "gpm        ━━━" in out
    assert "learnt in" not in out
    out = printed("--verbose")
    assert "gpm        ━━━" in out
    assert "gpm: task 2/2, epoch 3/3: loss " in out
    assert "gpm: task 2/2 learnt in " in out
    for words in (["--log", "text"], ["--quiet"]):
        out = printed(*words)
        assert "gpm        ━━━" not in out
        assert out.startswith("gpm: task 1/2 learnt in ") == (words != ["--quiet"])


def test_confusions_are_shown_with_or_without_lines_for_epochs(call, birds, monkeypatch):
    from classgrad.cli import info

    seen = []
    monkeypatch.setattr(info, "print_confusions", lambda *given: seen.append(given))
    for words, count in ([], 0), (["--confusions"], 1), (["--verbose"], 2):
        assert call(*LEARN, *words)[0] == 0
        assert len(seen) == count


def test_no_curves_of_a_finished_run_are_promised(call, tmp_path):
    call(*RUN)
    line = "gpm: finished before, so no curves are written (--fresh starts again)\n"
    assert call(*RUN, "--tensorboard")[1].startswith(line)
    assert not list(tmp_path.glob("runs/*/tensorboard"))
    call(*RUN, "--tensorboard", "--fresh")
    assert list(tmp_path.glob("runs/*/tensorboard/*"))
    assert "no curves" not in call(*RUN, "--tensorboard")[1]


# Jobs.


@pytest.fixture
def statuses(tmp_path):
    plans = [make_plan("split-digits", "gpm", seed=seed) for seed in (1, 2, 3)]
    return [Status(job) for job in jobs_of_plans([("gpm", plan) for plan in plans], tmp_path)]


def test_epochs_of_jobs_share_a_line_and_tasks_do_not(clock, statuses):
    def shown(verbose):
        display = LineDisplay(Console(file=io.StringIO(), width=200), verbose=verbose)
        for number in range(6):
            clock[0] += EPOCH_INTERVAL / 2
            display.logged({"event": "epoch", "text": f"epoch {number}"}, statuses[number % 3])
        display.logged({"event": "task", "text": "task"}, statuses[0])
        display.logged({"event": "note", "text": "note", "hint": "fetch:mnist"}, statuses[1])
        return display.console.file.getvalue().splitlines()

    assert shown(verbose=False) == [
        "gpm, seed 2: epoch 1",
        "gpm, seed 1: epoch 3",
        "gpm, seed 3: epoch 5",
        "gpm, seed 1: task",
        "gpm, seed 2: note (classgrad data fetch mnist)",
    ]
    assert len(shown(verbose=True)) == 8


def test_the_time_left_for_all_jobs_follows_from_their_estimates(clock, statuses):
    display = LineDisplay(Console(file=io.StringIO()), seconds=[100.0, 100.0, 200.0])
    first, second, _ = statuses
    first.begin()
    first.update({"done": 0.5, "task": 0, "tasks": 2})  # was cut: a quarter of the work was done
    display.tick(statuses)
    second.begin()
    second.update({"done": 0.0})
    clock[0] += 60.0
    second.update({"done": 0.5})
    first.update({"end": "done", "done": 1.0})
    display.changed(first)
    # 100 of 350 seconds of work took 60 seconds.
    assert display.left() == pytest.approx(150.0)
    last = display.console.file.getvalue().splitlines()[-1]
    assert last == "3 runs: 1 done, 1 running, 1 waiting, 2.5 min left"


# In place of bars.


def test_without_a_terminal_a_bar_is_a_line_every_ten_seconds(clock):
    for transient in (False, True):
        console = Console(file=io.StringIO(), width=20)
        with bar(console, "images", transient=transient) as move:
            for number in range(1, 9):
                clock[0] += 4.0
                move(number / 10, f"{number:,}00/1,000")
        expected = "images: 300/1,000, 28.0 s left\nimages: 600/1,000, 16.0 s left\n"
        assert console.file.getvalue() == ("" if transient else expected)


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text):
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_stops_nothing():
    print_line(Console(file=Full()), "lost")
    JsonLog(Full()).start("gpm", "runs/1")


# Messages.


def rows(heading):
    """Return the rows of the table in the docs that begins with this heading."""
    table = DOCS.read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def names(cell):
    return re.findall(r"`(\w+)`", cell)


KINDS = {"string": str, "number": (int, float), "null": type(None), "boolean": bool}
KEYS = {
    name: [KINDS[word] for word in kind.split(" or ")]
    for cell, kind, _ in rows("key | type")
    for name in names(cell)
}
EVENTS = [({"event", "time", *names(keys)}, *names(cell)) for cell, _, keys in rows("event | when")]


def check(messages):
    """Assert that messages are among those that the documentation describes; return their kinds."""
    for message in messages:
        assert (message.keys() - {"run"}, message["event"]) in EVENTS, message
        for name, value in message.items():
            assert any(isinstance(value, kind) for kind in KEYS[name]), (name, value)
        assert datetime.fromisoformat(message["time"]).utcoffset().total_seconds() == 0
    return [message["event"] for message in messages]


def test_the_messages_of_a_run_are_those_of_the_documentation(call, tmp_path):
    code, out, err = call(*RUN, "--log", "json", "--verbose")
    assert (code, RESULT in err) == (0, True)
    messages = events(out)
    one = ["epoch", "epoch", "epoch", "task"]
    assert check(messages) == ["start", *one, *one, "end"]
    assert {message["run"] for message in messages} == {"gpm"}
    assert (tmp_path / messages[0]["folder"] / "record.json").is_file()
    assert messages[-2]["accuracy"] == messages[-1]["accuracy"]
    _, out, _ = call(*RUN, "--log", "json")
    assert check(events(out)) == ["start", "note", "end"]
    _, out, _ = call(*RUN, "--log", "json", "--quiet")
    assert check(events(out)) == ["start", "end"]


def test_progress_json_is_the_same_with_progress_and_without_tables(call):
    code, out, err = call(*RUN, "--progress", "json")
    assert (code, err) == (0, "")
    kinds = check(events(out))
    assert kinds.count("progress") > 0
    assert [kind for kind in kinds if kind != "progress"] == ["start", "task", "task", "end"]


def test_every_run_of_a_command_has_its_messages(call):
    _, out, _ = call(*RUN, "--seed", "1,2", "--log", "json")
    messages = events(out)
    assert check(messages) == ["start", "task", "task", "end"] * 2
    assert [message["run"] for message in messages] == ["gpm, seed 1"] * 4 + ["gpm, seed 2"] * 4


def test_an_error_is_the_last_message(call):
    code, out, err = call(*RUN, "--set", "learning_rate=1e30", "--log", "json")
    messages = events(out)
    assert (code, check(messages)[-1]) == (2, "end")
    assert (messages[-1]["end"], messages[-1]["diverged"]) == ("failed", True)
    assert messages[-1]["why"] in err
    code, out, _ = call(*RUN, "--set", "epochs2=1", "--log", "json")
    (message,) = events(out)
    assert (code, check([message])) == (2, ["end"])
    assert "run" not in message


def test_the_messages_of_learn_are_those_of_the_documentation(call, birds):
    code, out, err = call(*LEARN, "--log", "json", "--verbose")
    assert code == 0
    assert "accuracy " in err
    messages = events(out)
    assert check(messages) == ["start", "epoch", "epoch", "task", "end"]
    assert (messages[0]["folder"], messages[0]["plan"]) == ("state", None)
    assert {message["name"] for message in messages[1:-1]} == {"birds"}
    assert messages[-1]["accuracy"] == messages[-2]["accuracy"] is not None
    code, out, _ = call(*LEARN, "--size", "7", "--log", "json")
    assert (code, check(events(out))) == (2, ["start", "end"])


# What a job sends: a task, and a warning.
JOB = """
import json, sys

def send(**message):
    print(json.dumps({"time": "2026-09-21T14:13:20.512+00:00", **message}), flush=True)

if sys.argv[sys.argv.index("--seed") + 1] == "2":
    raise RuntimeError("this is a fault")
place = {"task": 0, "tasks": 1, "name": "one", "done": 1.0, "left": 0.0}
figures = {"accuracy": 90.5, "transfer": None}
send(event="task", text="task 1/1 learnt", **place, **figures, seconds=1.5)
send(event="note", text="damaged", hint=None, level="warning", tell="gpm: damaged")
send(event="end", end="done", done=1.0, **figures)
"""


@pytest.mark.parametrize("quiet", [False, True])
def test_the_messages_of_jobs_name_their_runs(call, worker, quiet):
    worker(JOB)
    code, out, err = call(*SWEEP, "--log", "json", *(["--quiet"] if quiet else []))
    assert code == 1
    assert "classgrad: 1 of 2 runs did not finish" in err
    messages = events(out)
    between = ["note"] if quiet else ["task", "note"]
    assert check(messages) == ["start", *between, "end", "start", "end", "end"]
    titles = ["gpm, seed 1"] * (len(between) + 2) + ["gpm, seed 2"] * 2 + [None]
    assert [message.get("run") for message in messages] == titles
    assert [message["end"] for message in messages if message["event"] == "end"] == [
        "done",
        "failed",
        "failed",
    ]


def test_jobs_in_detail_are_asked_for_details(call, worker, tmp_path):
    worker("import os, sys; open(os.environ['PLACE'] + '/words', 'w').write(' '.join(sys.argv))")
    call(*SWEEP, "--verbose")
    assert "--verbose" in (tmp_path / "words").read_text()


WRONG = {
    "unknown format": (["--log", "xml"], "--log takes text or json (got 'xml')"),
    "quiet and verbose": (["--quiet", "--verbose"], "--quiet and --verbose contradict each other"),
    "json twice": (["--log", "json", "--json"], "--log json and --json both print JSON"),
    "json and text": (
        ["--progress", "json", "--log", "text"],
        "--progress json and --log text contradict each other",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_code_2_nothing_written(call, case):
    given, message = WRONG[case]
    refused(call, [*RUN, *given], message)
