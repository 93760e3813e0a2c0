"""A folder has one owner at a time."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoints.hosts import Hosts, not_renewed, paused
from classgrad import UserError
from classgrad.checkpoints import Lock, lock
from classgrad.checkpoints.lock import InUse, LockLost, in_use, lock_above, start_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def write_lock(folder, **parts):
    me = {"pid": os.getpid(), "host": socket.gethostname(), "started": start_of(os.getpid())}
    (folder / "lock.json").write_text(json.dumps({**me, **parts}))


def owner(folder):
    return json.loads((folder / "lock.json").read_text())["pid"]


def takes_over(folder):
    with Lock(folder):
        assert owner(folder) == os.getpid()
    assert os.listdir(folder) == []


def refused(folder, *reasons):
    before = (folder / "lock.json").read_bytes()
    with pytest.raises(UserError) as caught, Lock(folder):
        pass
    message = str(caught.value)
    assert "\n" not in message
    for reason in (f"'{folder}", *reasons):
        assert reason in message
    assert (folder / "lock.json").read_bytes() == before
    assert os.listdir(folder) == ["lock.json"]


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_the_file_names_its_owner_and_goes_with_the_block(tmp_path):
    folder = tmp_path / "runs" / "new"
    with Lock(folder) as own:
        assert json.loads(own.path.read_text()) == {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": start_of(os.getpid()),
            "expires_after": 600,
            "token": own.token,
        }
        assert os.listdir(folder) == ["lock.json"]
        with open(own.path) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir(folder) == []
    takes_over(folder)


def test_it_is_released_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), Lock(tmp_path):
        1 / 0  # noqa: B018
    takes_over(tmp_path)


def test_a_second_owner_is_refused(tmp_path):
    with Lock(tmp_path):
        process = f"in use by process {os.getpid()} on '{socket.gethostname()}'"
        refused(tmp_path, process, "wait until it ends, or stop it")
        assert owner(tmp_path) == os.getpid()
    takes_over(tmp_path)


def test_a_lock_of_a_process_that_is_gone_is_taken_over(tmp_path, sleeper):
    write_lock(tmp_path, pid=sleeper.pid, started=start_of(sleeper.pid))
    refused(tmp_path, f"process {sleeper.pid} ")
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{sleeper.pid}").exists()  # listed as long as nobody asked how it ended
    takes_over(tmp_path)
    write_lock(tmp_path, pid=sleeper.pid, started="1")
    sleeper.wait()
    takes_over(tmp_path)


def test_a_lock_whose_number_now_belongs_to_another_process_is_taken_over(tmp_path, sleeper):
    write_lock(tmp_path, pid=sleeper.pid)
    takes_over(tmp_path)


def test_others_can_see_whether_a_folder_is_in_use(tmp_path, sleeper):
    assert not in_use(tmp_path)
    with Lock(tmp_path):
        assert in_use(tmp_path)
    assert not in_use(tmp_path)
    write_lock(tmp_path, pid=sleeper.pid, started=start_of(sleeper.pid))
    assert in_use(tmp_path)
    write_lock(tmp_path, started="in another container")
    assert not in_use(tmp_path)
    with open(tmp_path / "lock.json") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert in_use(tmp_path)
    write_lock(tmp_path, host="elsewhere")
    assert in_use(tmp_path)
    write_lock(tmp_path, host="elsewhere", expires_after=600)
    assert in_use(tmp_path)
    not_renewed(tmp_path / "lock.json")
    assert not in_use(tmp_path)
    (tmp_path / "lock.json").write_text("{")
    assert not in_use(tmp_path)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_not_seen_but_holds_the_kernels_lock_is_respected(tmp_path):
    write_lock(tmp_path, started="in another container")
    with open(tmp_path / "lock.json") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(tmp_path, f"if that process is gone, remove '{tmp_path / 'lock.json'}'")
    takes_over(tmp_path)


def test_a_lock_of_another_host_is_refused(tmp_path):
    write_lock(tmp_path, host="elsewhere", pid=2**22 + 1)
    refused(
        tmp_path,
        f"in use by process {2**22 + 1} on 'elsewhere'",
        f"if that process is gone, remove '{tmp_path / 'lock.json'}'",
    )


# Locks that expire


@pytest.fixture
def hosts(monkeypatch):
    return Hosts(monkeypatch)


@pytest.fixture
def elsewhere(tmp_path, hosts):
    """Give the lock of a process on another host."""
    own = hosts.take("elsewhere", tmp_path)
    yield own
    with hosts.on("elsewhere"):
        own.release()


def test_an_owner_renews_its_lock_until_it_is_released(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY", 0.001)
    before = threading.enumerate()
    with Lock(tmp_path) as own:
        (thread,) = set(threading.enumerate()) - set(before)
        assert thread.daemon
        not_renewed(own.path)
        end = time.monotonic() + 30
        while time.time() - own.path.stat().st_mtime > 60 and time.monotonic() < end:
            time.sleep(0.001)
        assert time.time() - own.path.stat().st_mtime < 60
    thread.join(30)
    assert not thread.is_alive()
    own.renew()  # of no effect


@pytest.mark.parametrize(("minutes", "left"), [(0, 10), (1.5, 9), (7.4, 3)])
def test_a_lock_of_another_host_that_was_renewed_is_refused_at_once(
    tmp_path, hosts, elsewhere, minutes, left
):
    not_renewed(elsewhere.path, minutes)
    refused(
        tmp_path,
        f"process {os.getpid()} on 'elsewhere': wait until it ends, or stop it; if it is gone, "
        f"try again in {left} minutes, or remove '{elsewhere.path}'",
    )
    assert hosts.now == 0
    elsewhere.refuse_lost()


def test_a_lock_of_another_host_that_was_not_renewed_is_taken_over(
    tmp_path, hosts, elsewhere, caplog
):
    not_renewed(elsewhere.path)
    with Lock(tmp_path) as own:
        assert 150 <= hosts.now < 152  # it was watched for so many seconds
        own.refuse_lost()
        assert lock_above(tmp_path / "checkpoints") is own
        assert os.listdir(tmp_path) == ["lock.json"]
        with pytest.raises(LockLost, match=r"'first' has taken over .*: nothing was") as caught:
            elsewhere.refuse_lost()
        assert "\n" not in str(caught.value)
        not_renewed(own.path, 5)
        elsewhere.renew()
        assert time.time() - own.path.stat().st_mtime > 60  # what is not its own is not renewed
        elsewhere.release()
        own.refuse_lost()
        refused(tmp_path)
    (said,) = caplog.messages
    assert said.startswith(f"'{tmp_path}' is locked by process {os.getpid()} on 'elsewhere'")
    assert said.endswith("taking over in 150 seconds")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("parts", [{}, {"expires_after": None}, {"expires_after": 1}])
@pytest.mark.parametrize("minutes", [11, 1e6])
def test_a_lock_that_does_not_say_that_it_is_renewed_never_expires(tmp_path, hosts, parts, minutes):
    write_lock(tmp_path, host="elsewhere", **parts)
    not_renewed(tmp_path / "lock.json", minutes)
    refused(tmp_path, "on 'elsewhere': if that process is gone, remove")


@pytest.mark.parametrize("minutes", [11, 60, -60])
def test_whatever_its_clock_says_an_owner_that_renews_its_lock_keeps_it(
    tmp_path, hosts, elsewhere, minutes
):
    """On some filesystems the time of a file is that of the host that writes it."""

    def renew():
        if hosts.now % 60 == 50:
            not_renewed(elsewhere.path, minutes - hosts.now / 60)

    hosts.meanwhile = renew
    not_renewed(elsewhere.path, minutes)
    refused(tmp_path, "wait until it ends, or stop it; if it is gone, try again in 10 minutes")
    assert hosts.now == 50
    elsewhere.refuse_lost()


def test_a_lock_that_is_released_while_it_is_watched_is_had_at_once(tmp_path, hosts, elsewhere):
    hosts.meanwhile = elsewhere.release
    not_renewed(elsewhere.path)
    takes_over(tmp_path)
    assert hosts.now < 2


def test_of_two_that_take_over_at_once_one_wins(tmp_path, hosts, elsewhere):
    def overtake():
        if hosts.now == 150:  # what the other has watched for, while this one was slower
            hosts.meanwhile = lambda: None
            others.append(hosts.take("third", tmp_path))

    others, hosts.meanwhile = [], overtake
    not_renewed(elsewhere.path)
    with pytest.raises(UserError, match=r"in use by process .* on 'third'"):
        Lock(tmp_path).__enter__()
    others[0].refuse_lost()
    others[0].release()
    assert os.listdir(tmp_path) == []


def test_of_two_that_take_over_one_wins_wherever_the_other_is_paused(tmp_path, hosts, monkeypatch):
    monkeypatch.setattr(lock, "LOOK_EVERY", 75)
    winners, at, reached = [], 0, True
    while reached:
        at += 1
        folder = tmp_path / str(at)
        gone, second, third = hosts.take("elsewhere", folder), Lock(folder), Lock(folder)
        not_renewed(gone.path)

        def overtake(third=third):
            with hosts.on("third"), suppress(InUse):
                third.__enter__()

        with monkeypatch.context() as patch:
            operations = paused(patch, at, overtake)
            with suppress(InUse):
                second.__enter__()
            reached = operations() >= at
        if not reached:  # it was not paused
            overtake()
        owners = [one for one in (second, third) if one._handle is not None]
        assert len(owners) == 1
        owners[0].refuse_lost()
        winners.append(owners[0] is second)
        gone.release()
        owners[0].release()
        assert os.listdir(folder) == []
    assert winners == sorted(winners)  # whoever comes first
    assert {*winners} == {True, False}


def test_a_process_that_is_killed_while_it_takes_over_does_not_keep_others_out(
    tmp_path, hosts, elsewhere, monkeypatch
):
    not_renewed(elsewhere.path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            hosts.take("third", tmp_path)
    part, claim = sorted(tmp_path.glob(".lock.json-*"))
    assert part.samefile(claim)
    with pytest.raises(UserError, match="just being taken over by another process: wait until"):
        Lock(tmp_path).__enter__()
    not_renewed(claim)
    with Lock(tmp_path) as own:
        assert [path.name for path in tmp_path.iterdir()].count("lock.json") == 1
        own.refuse_lost()
    not_renewed(next(tmp_path.glob(".*")), 25 * 60)
    takes_over(tmp_path)  # and what a process left that was killed long ago is gone


class Killed(BaseException):
    """The end of a process that can do nothing more."""


def killed(*_given, **_named):
    raise Killed


def test_an_owner_whose_lock_is_removed_by_hand_stops(tmp_path):
    with Lock(tmp_path) as own:
        own.path.unlink()
        with pytest.raises(LockLost, match="taken over, removed or damaged: nothing was overw"):
            own.refuse_lost()
        own.path.write_text("{")
        with pytest.raises(LockLost, match="taken over, removed or damaged: nothing was overw"):
            own.refuse_lost()


def test_without_times_of_files_a_lock_does_not_expire(tmp_path, hosts, monkeypatch):
    def fail(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", fail)
        own = hosts.take("elsewhere", tmp_path)
    not_renewed(own.path)
    refused(tmp_path, "on 'elsewhere': if that process is gone, remove")
    own.release()


def test_a_lock_that_another_process_took_over_a_moment_ago_is_respected(
    tmp_path, sleeper, monkeypatch
):
    get, calls = lock._lock, []

    def overtaken(handle):
        got = get(handle)
        calls.append(got)
        if len(calls) == 2:  # the first is for the file of its own
            (tmp_path / "lock.json").unlink()
            write_lock(tmp_path, pid=sleeper.pid, started=start_of(sleeper.pid))
        return got

    write_lock(tmp_path, started="1")
    monkeypatch.setattr(lock, "_lock", overtaken)
    with pytest.raises(UserError, match=f"in use by process {sleeper.pid} "), Lock(tmp_path):
        pass
    assert calls[:2] == [True, True]
    assert owner(tmp_path) == sleeper.pid


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"pid": "1"}', b"[" * 9999])
def test_what_is_no_lock_is_refused(tmp_path, content):
    (tmp_path / "lock.json").write_bytes(content)
    refused(tmp_path, "is not a lock of classgrad: remove it if no process uses the folder")


def test_a_lock_that_somebody_else_has_now_is_not_removed(tmp_path):
    with Lock(tmp_path):
        (tmp_path / "lock.json").unlink()
        write_lock(tmp_path, pid=1)
    assert owner(tmp_path) == 1


def test_a_lock_that_was_removed_does_not_matter(tmp_path):
    with Lock(tmp_path):
        (tmp_path / "lock.json").unlink()
    takes_over(tmp_path)


@pytest.mark.parametrize("name", ["open", "link", "fsync"])
def test_a_folder_that_cannot_be_written_to_is_one_clear_line(tmp_path, monkeypatch, name):
    def fail(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(UserError, match="Read-only file system; give a folder"):
            Lock(tmp_path).__enter__()
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("impatient")
def test_without_locks_of_the_kernel_a_folder_is_locked_but_never_taken_over(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with Lock(tmp_path):
        refused(tmp_path, "wait until it ends, or stop it")
    write_lock(tmp_path, started="1")
    refused(tmp_path, "if that process is gone, remove")


def test_an_answer_that_got_lost_on_the_network_is_understood(tmp_path, monkeypatch):
    link = os.link

    def forgetful(*names):
        link(*names)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", forgetful)
    takes_over(tmp_path)


def test_the_start_of_a_process_is_found_whatever_its_name():
    script = "echo 'a) Z 1 (b' > /proc/self/comm; echo; read line"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        shell.stdout.readline()
        boot, ticks = start_of(shell.pid).split()
        own_boot, own_ticks = start_of(os.getpid()).split()
        assert boot == own_boot
        assert 0 < int(own_ticks) < int(ticks)
        shell.stdin.close()
    assert start_of(shell.pid) == ""


RACE = """
import json, os, signal, socket, sys
from classgrad import UserError
from classgrad.checkpoints import Lock

folder, racers = sys.argv[1], 6
path = os.path.join(folder, "lock.json")


def fork(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = work()
        finally:
            os._exit(status)
    return pid


def ended(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def leave_stale_lock():
    out, ready = os.pipe()

    def hold():
        with Lock(folder):
            os.write(ready, b"x")
            signal.pause()

    pid = fork(hold)
    os.read(out, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(out), os.close(ready)
    assert json.load(open(path))["pid"] == pid


def race():
    # All start at once; who wins keeps the lock until all have tried.
    start, go = os.pipe()
    tried, done = os.pipe()
    over, end = os.pipe()

    def racer():
        os.close(go), os.close(end)
        os.read(start, 1)
        try:
            with Lock(folder):
                os.write(done, b"w")
                os.read(over, 1)
                assert json.load(open(path))["pid"] == os.getpid()
                return 10
        except UserError as error:
            os.write(done, b"l")
            return 20 if "wait until it ends" in str(error) else 30

    pids = [fork(racer) for _ in range(racers)]
    os.close(start), os.close(go)
    for _ in range(racers):
        os.read(tried, 1)
    os.close(over), os.close(end)
    os.close(tried), os.close(done)
    return sorted(ended(pids))


def meet():
    # Again and again in and out: never two inside.
    inside, count = os.path.join(folder, "inside"), 0
    for _ in range(150):
        try:
            with Lock(folder):
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                os.remove(inside)
                count += 1
        except UserError:
            pass
    return 10 if count else 20


for stale in [True, False] * 8:
    if stale:
        leave_stale_lock()
    assert race() == [10] + [20] * (racers - 1)
    assert os.listdir(folder) == [], os.listdir(folder)
assert set(ended([fork(meet) for _ in range(3)])) == {10}
assert os.listdir(folder) == []
"""


def test_of_many_processes_at_the_same_moment_one_wins(tmp_path):
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", RACE, str(tmp_path)]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_interrupted_while_locking_nothing_stays_locked(tmp_path, monkeypatch):
    link = os.link

    def interrupted(*names):
        link(*names)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", interrupted)
        with pytest.raises(KeyboardInterrupt), Lock(tmp_path):
            pass
    assert os.listdir(tmp_path) == []
    takes_over(tmp_path)


def test_an_owner_of_endless_name_is_reported_in_a_line_that_can_be_read(tmp_path):
    write_lock(tmp_path, host="a" * 3000)
    with pytest.raises(UserError, match="in use by process") as error, Lock(tmp_path):
        pass
    assert len(str(error.value)) < 1000
    assert str(error.value).isprintable()
