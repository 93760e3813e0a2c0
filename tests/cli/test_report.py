import csv
import io
import os
import shutil
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
from classgrad.report.page import page
from classgrad.report.page.summary import sections
from classgrad.report.page.tables import markdown
from pages import parsed, record

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


@pytest.fixture
def runs(tmp_path):
    made = [record(name, seed) for name in ("cgp", "gpm") for seed in (1, 2)]
    made[3] = record("gpm", 2, ((70.0,), (60.0, 80.5)))
    for number, one in enumerate(made):
        folder = tmp_path / "runs" / f"run{number}"
        folder.mkdir(parents=True)
        one.save(folder)
    return made


def test_a_page_is_written_and_its_path_printed(call, runs, tmp_path):
    (tmp_path / "runs" / "matrices.png").write_bytes(b"a picture")
    code, out, err = call("report", "runs", "runs/matrices.png", "-o", "page.html")
    assert (code, err) == (0, "")
    assert out.split() == ["page", "page.html"]
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]


def test_runs_are_found_however_they_are_named_and_counted_once(call, runs, tmp_path):
    for words in (
        ["runs"],
        ["."],
        [f"runs/run{n}" for n in range(4)],
        ["runs", "runs/run0", "runs/run1/record.json"],
    ):
        code, _, err = call("report", *words)
        assert (code, err) == (0, "")
        assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(runs)


def test_it_is_said_how_many_records_are_left_out(call, runs, tmp_path):
    for name in ("run0", "run3"):
        shutil.copytree(tmp_path / "runs" / name, tmp_path / "copies" / name)
    code, out, err = call("report", "runs", "copies")
    assert (code, out.split()) == (0, ["page", "report.html"])
    assert err == "left out  2 of 6 records: repeats of the same settings and seed\n"
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(runs)


def test_what_report_wrote_beside_runs_is_passed_over(call, runs, tmp_path):
    made = ["-o", "runs/page.html", "--markdown", "runs/t.md", "--csv", "runs/t.csv"]
    assert call("report", "runs", *made, "--pictures", "runs/images")[0] == 0
    beside = [str(path) for path in (tmp_path / "runs").iterdir() if path.name != "images"]
    drawn = [str(path) for path in (tmp_path / "runs" / "images").iterdir()]
    assert len(beside) == 7
    for words in (["report", *beside, *drawn], ["show", *beside, *drawn]):
        code, _, err = call(*words)
        assert (code, err) == (0, "")
    assert parsed((tmp_path / "report.html").read_text(encoding="utf-8")).one("h1")


def test_title_and_reference_are_those_given(call, runs, tmp_path):
    code, _, _ = call("report", "runs", "--title", "Mine & yours", "--against", "gpm")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert code == 0
    assert text == page(runs, title="Mine & yours", against="gpm")
    assert parsed(text).one("h1").text == "Mine & yours"


def test_the_papers_figures_are_beside_the_runs_that_repeat_them(call, tmp_path):
    plan = experiments.load("cifar100").plans("fast", [1])["CGP"][0].as_dict()
    record(accuracies=((74.0,),)).model_copy(update=plan).save(tmp_path)
    assert call("report", ".", "--csv", "t.csv")[0] == 0
    assert "paper ACC" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (line,) = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text(encoding="utf-8")))
    assert (line["paper_acc"], line["paper_acc_repeated"]) == ("74.26", "True")


def test_markdown_and_csv_agree_with_the_page(call, runs, tmp_path):
    code, _, _ = call("report", "runs", "--markdown", "t.md", "--csv", "t.csv")
    assert code == 0
    root = parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    shown = root.one("table", id="comparison-1").rows()
    lines = (tmp_path / "t.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert cells[0] == shown[0]
    free = cells[0].index("free rank")
    assert [line.pop(free) for line in cells] == ["free rank", "---:", "55 % fc1", "55 % fc1"]
    assert [line.pop(free) for line in shown] == ["free rank", "55 %", "55 %"]
    assert cells[2] == ["cgp (reference)", *shown[1][1:]]
    difference = cells[0].index("difference")
    number, _, interval = cells[3].pop(difference).partition(" (")
    assert number == shown[2].pop(difference)
    assert interval == "−131.9 to +112.7)"
    assert cells[3] == shown[2]
    first, second = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text(encoding="utf-8")))
    assert first["method"] == first["reference"] == "cgp"
    assert float(second["acc"]) == pytest.approx((89.5 + 70.25) / 2)
    assert float(second["difference"]) == pytest.approx((0 + 70.25 - 89.5) / 2)
    assert float(second["difference_sd"]) == pytest.approx(19.25 / 2**0.5)
    assert float(second["difference_low"]) == pytest.approx(
        -19.25 / 2 - 12.706 * 19.25 / 2, abs=0.1
    )
    assert first["incremental"] == first["network_bytes"] == ""  # of records that do not tell
    assert first["difference"] == first["paper_acc"] == ""
    assert second["seeds"] == "1 2"


def test_markdown_can_be_printed(call, runs):
    code, out, err = call("report", "runs", "--markdown", "-")
    assert (code, err) == (0, "")
    assert out == markdown(sections(runs))
    assert not Path("report.html").exists()
    code, again, err = call("report", "runs", "--markdown", "-", "-o", "page.html")
    assert (code, again) == (0, out)
    assert err.split() == ["page", "page.html"]
    assert Path("page.html").exists()


def test_pictures_are_drawn_of_every_figure_with_its_names_and_values(call, runs, tmp_path):
    code, out, _ = call("report", "runs", "--pictures", "images")
    assert code == 0
    kinds = ["curve", "matrix", "forgetting", "free-rank", "cost"]
    names = {f"1-{n}-{kind}.{end}" for n, kind in enumerate(kinds, 1) for end in ("png", "svg")}
    files = list((tmp_path / "images").iterdir())
    assert {file.name for file in files} == names
    for file in files:
        start = file.read_bytes()[:100]
        assert start.startswith(b"\x89PNG" if file.suffix == ".png" else b"<?xml")
    assert "images: 10 files" in out
    text = (tmp_path / "images" / "1-2-matrix.svg").read_text(encoding="utf-8")
    for word in ("cgp", "gpm", ">88<", ">91<", ">74<", ">86<"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "no run at 'none"),
        (["empty"], "no runs in 'empty'"),
        (["a.png"], "only pictures, pages or tables are given"),
        (["broken"], "is not a record"),
        (["text.txt"], "is not a record"),
        (["runs", "-o", "empty"], "'empty' is a folder"),
        (["runs", "-o", "none/page.html"], "'none' is not a folder"),
        (["runs", "-o", "text.txt/page.html"], "'text.txt' is not a folder"),
        (["runs", "-o", "runs/run0/record.json"], "is the file name of records"),
        (["runs", "--csv", "none/t.csv"], "'none' is not a folder"),
        (["runs", "-o", "a", "--csv", "./a"], "is named twice"),
        (["runs", "--pictures", "text.txt"], "'text.txt' is not a folder"),
        (["runs", "--pictures", "none/images"], "'none' is not a folder"),
        (["runs", "--title", os.fsdecode(b"\xff")], "'report.html' cannot be written: 'utf-8'"),
        (["runs", "--against", "cpg"], "did you mean 'cgp'"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_written(
    call, runs, tmp_path, words, message
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text("{}")
    (tmp_path / "text.txt").write_text("text")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, out, err = call("report", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_that_cannot_be_written_to_is_refused(call, runs, tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr("os.access", lambda place, _: place.name != "locked")  # root may anyway
    code, _, err = call("report", "runs", "-o", "locked/page.html")
    assert code == 2
    assert "'locked' cannot be written to" in err


def test_pictures_that_do_not_fit_on_the_disk_are_one_line(call, runs, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("classgrad.report.page.pictures.write_atomic", fail)
    code, _, err = call("report", "runs", "--pictures", "images")
    assert code == 2
    assert err.endswith(
        "classgrad: 'images' cannot be written to: [Errno 28] No space left on device\n"
    )


def test_a_page_that_is_there_is_replaced_whole_or_not_at_all(call, runs, tmp_path, monkeypatch):
    place = tmp_path / "report.html"
    place.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("classgrad.files.sync_file", fail)
        code, _, err = call("report", "runs")
    assert code == 2
    assert "cannot be written: disk full" in err
    assert place.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]
    assert call("report", "runs")[0] == 0
    assert place.read_text(encoding="utf-8") == page(runs)
