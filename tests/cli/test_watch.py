"""The command that shows runs in a browser: what it prints, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from classgrad.experiments import spec as experiments
from classgrad.report import server
from pages import record

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results" / "permuted-digits"


def asked(address, **options):
    """Return status and text of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, **options), timeout=10) as one:
            return one.status, one.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_the_command_opens_the_page_and_ends_like_others(call, monkeypatch):
    seen = []

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", seen.append)
    monkeypatch.setattr(server.Server, "serve_forever", stop)
    code, out, err = call("watch", "runs", "--port", "0", "--open")
    assert (code, err) == (130, "")
    assert out.split()[0] == seen[0]
    assert seen[0].startswith("http://127.0.0.1:")
    assert call("watch", "runs", "--port", "0")[0] == 130
    assert len(seen) == 1


def test_the_papers_figures_are_on_the_page(call, tmp_path, monkeypatch):
    plan = experiments.load("cifar100").plans("fast", [1])["CGP"][0].as_dict()
    record(accuracies=((74.0,),)).model_copy(update=plan).save(tmp_path)
    pages = []

    def look(one):
        pages.append(one.watched.page())
        raise KeyboardInterrupt

    monkeypatch.setattr(server.Server, "serve_forever", look)
    assert call("watch", ".", "--port", "0")[0] == 130
    assert "paper ACC" in pages[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_nothing_but_the_address_until_it_is_stopped(number):
    process = subprocess.Popen(
        [sys.executable, "-m", "classgrad", "watch", str(RUNS), "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    address = process.stdout.readline().split()[0]
    port = int(address.rstrip("/").rpartition(":")[2])
    assert "cgp" in asked(address)[1]
    assert asked(address + "x")[0] == 404
    assert asked(address, method="POST")[0] == 501
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.sendall(b"GET / HTT")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("", "", 128 + number)
