"""The command line: runs that are stopped, repeated, begun twice, or that find something else."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from commands import SRC, one_line, started

SMALL = ["--set", "tasks=2", "--set", "train_per_class=10", "--set", "batch_size=10"]
GPM = ["run", "split-digits", "--method", "gpm", *SMALL]
LONG = [*GPM, "--set", "epochs=20", "--save-steps", "20"]  # a second or two
TINY = [*GPM, "--set", "epochs=1", "--save-steps", "1"]  # five steps for each of two tasks


def folder_in(place):
    (folder,) = [path for path in place.iterdir() if path.is_dir()]
    return folder


def until_saved(process, place):
    """Wait until a process has saved something of its run; return the folder of the run."""
    end = time.monotonic() + 60
    while not list(place.glob("runs/*/checkpoints/0*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return folder_in(place / "runs")


def record_in(folder):
    record = json.loads((folder / "record.json").read_text())
    del record["seconds"]
    return record


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The record of the long run when nothing happens to it."""
    place = tmp_path_factory.mktemp("alone")
    process = started(place, *LONG)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return record_in(folder_in(place / "runs"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_says_how_to_resume_and_does(number, tmp_path, alone, call):
    process = started(tmp_path, *LONG, "--json")
    folder = until_saved(process, tmp_path)
    process.send_signal(number)
    asked = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 5
    assert process.returncode == 128 + number
    assert out == ""
    assert err.splitlines()[-1] == "classgrad: stopped; the same command resumes it"
    assert err.count("classgrad: ") == 1
    assert list(folder.glob("checkpoints/0*/manifest.json"))
    assert not (folder / "lock.json").exists()
    code, out, _ = call(*LONG, *(["--resume"] if number == signal.SIGTERM else []))
    assert code == 0
    assert "gpm: resuming with task " in out
    assert record_in(folder) == alone
    assert not (folder / "checkpoints").exists()


def test_a_second_process_is_refused_and_the_first_continues(tmp_path, alone, call):
    process = started(tmp_path, *LONG)
    folder = until_saved(process, tmp_path)
    process.send_signal(signal.SIGSTOP)  # it waits, so that it does not end too soon
    code, out, err = call(*LONG)
    process.send_signal(signal.SIGCONT)
    assert code == 2
    one_line(err, f"is in use by process {process.pid} on ", "wait until it ends")
    assert "resuming" not in out
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert record_in(folder) == alone


def test_a_read_only_disk_is_one_line(tmp_path):
    own = ["unshare", "--map-root-user", "--mount"]  # the disk is gone when the process ends
    disk = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*own, *disk], capture_output=True).returncode:
        pytest.skip("this system does not let a process mount a disk of its own")
    inside = ["sh", "-c", 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"', str(tmp_path)]
    process = started("/", *TINY, "--out", str(tmp_path / "runs"), before=[*own, *inside])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    one_line(err, "Read-only file system; give a folder that can be written to")


def test_a_file_in_the_way_is_one_line_and_stays(call, tmp_path):
    call(*TINY)
    folder = folder_in(tmp_path / "runs")
    shutil.rmtree(folder)
    folder.write_text("mine")
    code, _, err = call(*TINY)
    assert code == 2
    one_line(err, f"'{folder.relative_to(tmp_path)}'", "give a folder that can be written to")
    assert folder.read_text() == "mine"


def test_a_damaged_newest_checkpoint_is_reported_and_changes_nothing(call, stopped, tmp_path):
    call(*TINY, "--out", "alone")
    stopped(7, *TINY)
    folder = folder_in(tmp_path / "runs")
    newest = max((folder / "checkpoints").iterdir())
    file = newest / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-9] ^= 4
    file.write_bytes(content)
    code, out, _ = call(*TINY)
    assert code == 0
    assert (
        f"checkpoint '{newest.relative_to(tmp_path)}' is damaged: {file.name}: its checksum is "
        "wrong; resuming from the one before\n"
    ) in out
    assert record_in(folder) == record_in(folder_in(tmp_path / "alone"))


def test_nothing_to_resume_is_one_line_and_nothing_is_written(call, tmp_path):
    code, out, err = call(*TINY, "--resume")
    assert (code, out) == (2, "")
    one_line(err, "nothing to resume in 'runs': leave out --resume")
    code, out, err = call(*TINY, "--resume", "--fresh")
    assert (code, out) == (2, "")
    one_line(err, "--resume and --fresh contradict each other")
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_shown_at_once_and_learnt_again_if_asked(call, tmp_path):
    call(*TINY)
    folder = folder_in(tmp_path / "runs")
    first, result = (folder / "record.json").read_bytes(), record_in(folder)
    code, out, _ = call(*TINY)
    assert code == 0
    assert "gpm: finished before (--fresh starts again)" in out
    assert "accuracy after each task" in out
    code, out, err = call(*TINY, "--json", "--resume")
    assert code == 0
    assert json.loads(out) == json.loads(first)
    assert "finished before" in err
    assert (folder / "record.json").read_bytes() == first
    code, out, _ = call(*TINY, "--fresh")
    assert code == 0
    assert "finished before" not in out
    assert (folder / "record.json").read_bytes() != first  # other times
    assert record_in(folder) == result


def test_begun_again_and_stopped_it_resumes_with_the_new_run(call, stopped, tmp_path):
    call(*TINY)
    result = record_in(folder_in(tmp_path / "runs"))
    err = stopped(3, *TINY, "--fresh")
    one_line(err, "stopped; the same command without --fresh resumes it")
    code, out, _ = call(*TINY)
    assert code == 0
    assert "gpm: resuming with task 1" in out
    assert record_in(folder_in(tmp_path / "runs")) == result


def test_of_several_runs_the_one_that_was_stopped_resumes(call, stopped, tmp_path):
    several = ["run", "split-digits", "--method", "finetune,gpm", "--seed", "1,2", *TINY[4:]]
    stopped(18, *several)  # ten steps for each of four runs
    code, out, _ = call(*several)
    assert code == 0
    assert "finetune, seed 1: finished before" in out
    assert "gpm, seed 1: resuming with task 2" in out
    assert out.count("finished before") == out.count("resuming with") == 1
    assert len(list((tmp_path / "runs").glob("*/record.json"))) == 4


@pytest.mark.parametrize("kept", ["record", "state"])
def test_another_run_in_the_folder_is_refused_with_the_difference(call, stopped, tmp_path, kept):
    stopped(7, *TINY)
    mine = folder_in(tmp_path / "runs")
    shutil.rmtree(mine)
    other = [*TINY, "--set", "energy=0.9"]
    if kept == "record":
        call(*other)
    else:
        stopped(3, *other)  # in the first task: there is no record yet
    folder_in(tmp_path / "runs").rename(mine)
    before = sorted(mine.rglob("*"))
    code, _, err = call(*TINY)
    assert code == 2
    one_line(err, "holds another run: method.energy 0.9 there, ", "--out", "--fresh")
    assert sorted(mine.rglob("*")) == before


def test_other_data_than_those_of_a_finished_run_are_refused(call, tmp_path):
    call(*TINY)
    folder = folder_in(tmp_path / "runs")
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**record, "data": "0" * 32}))
    code, _, err = call(*TINY)
    assert code == 2
    one_line(err, f"holds another run: data {'0' * 32} there, {record['data']} here")


def test_a_damaged_record_is_reported_and_a_newer_one_is_left_alone(call, tmp_path):
    call(*TINY)
    folder = folder_in(tmp_path / "runs")
    result = record_in(folder)
    content = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**content, "schema_version": 99}))
    code, _, err = call(*TINY)
    assert code == 2
    one_line(err, "has schema 99, newer than ")
    assert json.loads((folder / "record.json").read_text())["schema_version"] == 99
    (folder / "record.json").write_text("{")
    code, out, _ = call(*TINY)
    assert code == 0
    assert "is not a record" in out
    assert "; it will be replaced\n" in out
    assert record_in(folder) == result


def test_a_system_without_locks_of_files_is_reported_in_one_line(tmp_path):
    code = "import sys; sys.modules['fcntl'] = None; from classgrad.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, *TINY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    one_line(result.stderr, "classgrad needs Linux or macOS")
    assert list(tmp_path.iterdir()) == []
