"""The server of the page that follows runs: what it answers, to whom, and when it makes it anew."""

import http.client
import os
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from classgrad.checkpoints import Lock
from classgrad.errors import UserError
from classgrad.report import server as module
from classgrad.report.server import WatchedRuns, open_server
from classgrad.runs.record import RunRecord
from servers import running

ROOT = Path(__file__).parents[2]
CGP, GPM = (
    next((ROOT / "results" / "permuted-digits").glob(f"*-{name}-seed4-*"))
    for name in ("cgp", "gpm")
)
NOTHING = "No run has finished a task yet"


@contextmanager
def serving(*runs):
    """Serve runs; yield the port."""
    with running(open_server(WatchedRuns(runs), 0)) as server:
        yield server.server_port


def asked(port, path="/", command="GET", hosts=None):
    """Send a request with these Host headers; return status, headers and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(command, path, skip_host=True)
        for host in [f"127.0.0.1:{port}"] if hosts is None else hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def runs(tmp_path):
    """A folder with the folder of one run."""
    shutil.copytree(CGP, tmp_path / "runs" / "cgp")
    return tmp_path / "runs"


def rewrite(folder, **changes):
    RunRecord.load(folder).model_copy(update=changes).save(folder)


def test_the_page_and_its_version_are_all_there_is(runs):
    with serving(runs) as port:
        status, headers, text = asked(port)
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert "cgp" in text
        status, _, version = asked(port, "/version")
        assert status == 200
        assert f'data-version="{version}"' in text
        for path in ("/x", "/../record.json", "/record.json", "/version/", "/?x"):
            assert asked(port, path)[0] == 404


def test_head_is_answered_without_content_and_other_commands_are_refused(runs):
    with serving(runs) as port:
        status, headers, text = asked(port, command="HEAD")
        assert (status, text) == (200, "")
        assert int(headers["Content-Length"]) > 1000
        for command in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(port, command=command)[0] == 501


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "LocalHost"])
def test_this_machine_is_answered(runs, name):
    with serving(runs) as port:
        assert asked(port, hosts=[name])[0] == 200
        assert asked(port, hosts=[f"{name}:{port}"])[0] == 200


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.org"],
        ["evil.org:8123"],
        ["localhost.evil.org"],
        ["evil.org", "localhost"],
        ["localhost", "evil.org"],
        ["localhost:80@evil.org"],
        ["localhost:"],
        ["127.0.0.2"],
        [""],
        [],
    ],
)
def test_a_request_by_another_name_is_refused(runs, hosts):
    with serving(runs) as port:
        for path in ("/", "/version", "/x"):
            status, _, text = asked(port, path, hosts=hosts)
            assert status == 403
            assert "cgp" not in text


def test_answers_are_not_kept_and_no_other_site_may_read_them(runs):
    with serving(runs) as port:
        for path in ("/", "/version", "/x"):
            headers = asked(port, path)[1]
            assert headers["Cache-Control"] == "no-store"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
            assert not [name for name in headers if name.lower().startswith("access-control")]


def test_only_this_machine_can_ask(runs):
    with open_server(WatchedRuns([runs]), 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_the_version_changes_with_any_record(runs):
    watched = WatchedRuns([runs])
    seen = [watched.version()]
    assert watched.version() == seen[0]
    rewrite(runs / "cgp", seed=9)
    seen.append(watched.version())
    shutil.copytree(GPM, runs / "gpm")
    seen.append(watched.version())
    shutil.rmtree(runs / "cgp")
    seen.append(watched.version())
    (runs / "gpm").rename(runs / "other")
    seen.append(watched.version())
    assert len(set(seen)) == len(seen)


def test_a_page_is_made_once_for_each_version(runs, monkeypatch):
    made, page = [], module.page
    monkeypatch.setattr(module, "page", lambda *a, **k: made.append(1) or page(*a, **k))
    watched = WatchedRuns([runs])
    first = watched.page()
    assert watched.page() == first
    assert len(made) == 1
    rewrite(runs / "cgp", seed=9)
    assert watched.page() != first
    assert len(made) == 2


@pytest.mark.parametrize("exists", [True, False])
def test_folders_without_runs_wait_for_them(tmp_path, exists):
    runs = tmp_path / "runs"
    if exists:
        runs.mkdir()
    watched = WatchedRuns([runs])
    before = watched.version()
    assert NOTHING in watched.page()
    shutil.copytree(CGP, runs / "cgp")
    assert watched.version() != before
    assert NOTHING not in watched.page()
    assert "cgp" in watched.page()


def test_a_run_that_failed_in_its_first_task_is_waited_for(runs):
    rewrite(runs / "cgp", accuracy_matrix=[], layers=[], classes=[], complete=False)
    assert NOTHING in WatchedRuns([runs]).page()


def test_a_run_that_was_cut_short_is_distinguished_from_one_in_progress(runs):
    rewrite(runs / "cgp", complete=False)
    watched = WatchedRuns([runs])
    with Lock(runs / "cgp"):
        going, text = watched.version(), watched.page()
        assert "tasks learnt" in text
        assert "cut short" not in text
    assert watched.version() != going
    assert "tasks learnt, cut short: repeat its command to resume it" in watched.page()


@pytest.mark.parametrize("content", ["", '{"schema_version": 1, "bench', "[]", "\x00\xff"])
def test_a_damaged_record_is_noted_and_the_others_are_shown(runs, content):
    (runs / "<i>broken").mkdir()
    (runs / "<i>broken" / "record.json").write_text(content)
    text = WatchedRuns([runs]).page()
    assert "&lt;i&gt;broken" in text
    assert "<i>broken" not in text
    assert "is not a record" in text
    assert "cgp" in text


def test_a_damaged_record_below_a_name_that_is_no_text_is_noted(runs):
    odd = runs / os.fsdecode(b"\xff")
    odd.mkdir()
    (odd / "record.json").write_text("{")
    with serving(runs) as port:
        status, _, text = asked(port)
    assert status == 200
    assert "is not a record" in text


def test_a_record_with_impossible_figures_is_noted(runs):
    shutil.copytree(GPM, runs / "gpm")
    rewrite(runs / "gpm", average_accuracy=1e300)
    text = WatchedRuns([runs]).page()
    assert "1e+300, which is impossible" in text
    assert "cgp" in text


def test_nothing_but_damaged_records_is_noted_too(tmp_path):
    (tmp_path / "record.json").write_text("{")
    text = WatchedRuns([tmp_path]).page()
    assert NOTHING in text
    assert "is not a record" in text


def test_a_record_that_goes_away_meanwhile_is_no_error(runs, monkeypatch):
    watched = WatchedRuns([runs])
    gone = [*watched.files(), runs / "gone" / "record.json"]
    monkeypatch.setattr(watched, "files", lambda: gone)
    watched.version()
    assert "cgp" in watched.page()


def test_unfinished_runs_say_how_many_tasks_are_learnt(runs):
    assert "5 tasks learnt" not in WatchedRuns([runs]).page()
    record = RunRecord.load(CGP)
    rewrite(
        runs / "cgp",
        accuracy_matrix=[row[:2] for row in record.accuracy_matrix[:2]],
        complete=False,
    )
    assert "cgp on permuted-digits, seed 4: 2 of 5 tasks learnt" in WatchedRuns([runs]).page()


def test_resumed_runs_of_a_sweep_can_be_told_apart(runs):
    shutil.copytree(CGP, runs / "other")
    record = RunRecord.load(CGP)
    rewrite(runs / "cgp", complete=False)
    rewrite(runs / "other", complete=False, method={**record.method, "similarity": 0.123})
    text = WatchedRuns([runs]).page()
    for value in (record.method["similarity"], 0.123):
        assert f"cgp similarity={value} on permuted-digits, seed 4: 5 of 5" in text


def test_the_next_free_port_is_taken_unless_one_is_asked_for(runs, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "PORT", port)
        with open_server(WatchedRuns([runs])) as server:
            assert port < server.server_port < port + module.TRIES
        with pytest.raises(UserError, match=f"port {port} cannot be used"):
            open_server(WatchedRuns([runs]), port)


def test_a_connection_that_is_closed_before_it_is_read_is_no_error(runs, capsys):
    with open_server(WatchedRuns([runs]), 0) as server:
        one, other = socket.socketpair()
        one.close()
        other.close()
        server.process_request_thread(one, ("here", 0))
        assert capsys.readouterr().err == ""
        with mock.patch.object(server, "finish_request", side_effect=ValueError("a fault")):
            server.process_request_thread(one, ("here", 0))
        assert "a fault" in capsys.readouterr().err
