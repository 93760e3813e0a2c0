"""Results at a URL: nothing is lost wherever copying is cut short, and runs resume elsewhere."""

import sys
from contextlib import suppress

import pytest
import torch

from classgrad.checkpoints.store import Store
from classgrad.errors import UserError
from classgrad.experiments.executors.pool import save_trace
from classgrad.experiments.jobs import Job, jobs_of_plans
from classgrad.experiments.remote import Remote, RemoteCheckpointManager, Results
from classgrad.runs.spec import make_plan

SETTINGS = {"tasks": 2, "train_per_class": 10, "batch_size": 10, "epochs": 1}
WORDS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]


class Cut(Exception):
    """The machine is gone."""


class Failing:
    """A file system that is there for so many changes only."""

    def __init__(self, files, changes):
        self.files, self.changes = files, changes

    def __getattr__(self, name):
        return getattr(self.files, name)

    def put_file(self, here, there):
        self._change()
        self.files.put_file(here, there)

    def rm_file(self, there):
        self._change()
        self.files.rm_file(there)

    def _change(self):
        if self.changes == 0:
            raise Cut
        self.changes -= 1


def save_some(checkpoints):
    """Save three states, with a record, then finish; yield how many are there for certain."""
    for number in (1, 2, 3):
        yield number - 1
        (checkpoints.folder / "record.json").write_text(str(number))
        checkpoints.save({"number": number, "tensor": torch.tensor([number])})
    yield 3
    (checkpoints.folder / "record.json").write_text("done")
    checkpoints.clear()


def test_wherever_copying_is_cut_there_is_a_state_to_resume_from(tmp_path):
    for changes in range(100):
        folder, url = tmp_path / f"here{changes}", f"file://{tmp_path}/there{changes}"
        folder.mkdir()
        checkpoints = RemoteCheckpointManager(folder, Remote(url), minutes=5)
        checkpoints.remote.files = Failing(checkpoints.remote.files, changes)
        certain, cut = 0, True
        with suppress(UserError):
            for certain in save_some(checkpoints):  # noqa: B007
                pass
            cut = False
        elsewhere = tmp_path / f"elsewhere{changes}"
        Remote(url).fetch(elsewhere)
        if not cut:
            break
        loaded = Store(elsewhere / "checkpoints").load()
        if (elsewhere / "record.json").is_file() and (
            (elsewhere / "record.json").read_text() == "done"
        ):
            continue
        assert (loaded.state["number"] if loaded else 0) in (certain, certain + 1)
        assert loaded is None or loaded.warnings == ()
        # What was copied in part does not spoil what is saved under the same number.
        again = RemoteCheckpointManager(elsewhere, Remote(url), minutes=5)
        again.load()
        again.save({"number": 9})
        Remote(url).fetch(tmp_path / f"third{changes}")
        assert Store(tmp_path / f"third{changes}" / "checkpoints").load().state == {"number": 9}
    assert changes > 15
    assert files(tmp_path / f"there{changes}") == files(elsewhere) == ["record.json"]


def files(folder):
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_a_run_that_was_stopped_is_resumed_by_a_sweep(call, stopped, tmp_path):
    words = ["-m", "gpm", *WORDS, "--out", f"file://{tmp_path}/there"]
    stopped(3, "run", "split-digits", *words)  # there is no record yet
    results = Results(tmp_path / "known", f"file://{tmp_path}/there")
    plan = make_plan("split-digits", "gpm", values=SETTINGS)
    (job,) = jobs_of_plans([("a", plan)], results.folder)
    assert [job.state() for job in results.look_up([job])] == ["cut"]
    code, out, err = call("sweep", "-b", "split-digits", *words)
    assert code == 0, err
    assert "gpm, seed 1: resuming with task 1\n" in out
    assert files(tmp_path / "there") == ["record.json"]
    assert [job.state() for job in results.look_up([job])] == ["done"]


def test_a_sweep_at_a_url_is_not_run_again(call, tmp_path):
    words = ["sweep", "-b", "split-digits", "-m", "gpm", *WORDS, "--threads", "1"]
    words += ["--out", f"file://{tmp_path}/a/b/"]
    code, out, err = call(*words)
    assert code == 0, err
    assert "1 of 1 runs to do" in out
    assert ", seed 1" in out
    assert files(tmp_path / "a" / "b") == ["record.json"]
    code, again, err = call(*words)
    assert code == 0, err
    assert "all runs are done" in again
    assert again.partition("recipe fast")[2] == out.partition("recipe fast")[2]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_other_files_at_the_url_are_neither_copied_nor_removed(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "record.json").write_text("{}")
    remote = Remote(f"file://{tmp_path}/there")
    remote.put(tmp_path / "here" / "record.json", "crash.txt")
    for name in ("notes.txt", "checkpoints/x/manifest.json", "recordXjson"):
        remote.put(tmp_path / "here" / "record.json", name)
    remote.push(tmp_path / "here")
    assert sorted(files(tmp_path / "there")) == [
        "manifest.json",
        "notes.txt",
        "record.json",
        "recordXjson",
    ]
    names = [f"{remote.root}/checkpoints/../../out/{name}" for name in ("manifest.json", "a")]
    monkeypatch.setattr(remote.files, "find", lambda root: names, raising=False)
    remote.fetch(tmp_path / "elsewhere")
    assert not (tmp_path / "out").exists()


def test_the_trace_of_a_crash_is_at_the_url(tmp_path):
    job = Job(make_plan("split-digits", "gpm"), tmp_path / "x", ("a",), f"file://{tmp_path}/y")
    assert save_trace(job, "KeyError: 1", "trace") == (
        f"KeyError: 1; see 'file://{tmp_path}/y/crash.txt'"
    )
    assert (tmp_path / "y" / "crash.txt").read_text() == "trace"


def test_what_cannot_be_written_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    remote = Remote(f"file://{tmp_path}/file/run")
    with pytest.raises(UserError, match=r"/file/run' cannot be written: .*file") as error:
        remote.put(tmp_path / "file", "record.json")
    assert "\n" not in str(error.value)


WRONG = {
    "unknown kind": ("nothing://a/b", "'nothing://a/b/", "cannot be used: "),
    "no package": ("gs://a/b", "'gs://a/b/", "needs a package that is not installed: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_url_is_one_line_code_2(call, tmp_path, monkeypatch, case):
    out, *messages = WRONG[case]
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # if it is installed after all
    code, _, err = call("sweep", "-b", "split-digits", "-m", "gpm", *WORDS, "--out", out)
    assert code == 2
    assert err.count("\n") == 1
    for message in messages:
        assert message in err
    assert list(tmp_path.iterdir()) == []
