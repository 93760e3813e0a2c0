"""The page that follows runs, in a real browser: what changes by itself, and what stays."""

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from classgrad.report.server import WatchedRuns, open_server
from classgrad.runs.record import RunRecord
from servers import running

RESULTS = Path(__file__).parents[2] / "results" / "permuted-digits"


def learnt(method, folder, tasks=5, **changes):
    """Write the record of a run that has learnt so many of its five tasks."""
    (source,) = RESULTS.glob(f"*-{method}-seed4-*")
    record = RunRecord.load(source)
    rows = [row[:tasks] for row in record.accuracy_matrix[:tasks]]
    changes = {"accuracy_matrix": rows, "complete": tasks == 5, **changes}
    (folder / method).mkdir(parents=True, exist_ok=True)
    record.model_copy(update=changes).save(folder / method)


@pytest.fixture
def served(tmp_path):
    """Serve a folder `runs` that does not exist yet; return it and the address."""
    runs = tmp_path / "runs"
    with running(open_server(WatchedRuns([runs]), 0)) as server:
        yield runs, server.address


def names(tab):
    heads = tab.locator("#best-1 tbody th")
    return heads.evaluate_all("all => all.map((head) => head.dataset.value)")


def open_runs(tab, method):
    """Open the list of runs, and the runs of a method in it."""
    tab.locator("#runs details.list > summary").click()
    tab.locator("#runs .runs summary").filter(has_text=method).click()


def test_runs_appear_and_are_updated_by_themselves(opened, served):
    runs, address = served
    tab = opened(address, at=address)
    tab.get_by_text("No run has finished a task yet").first.wait_for()
    assert tab.title() == "No run has finished a task yet"
    learnt("cgp", runs, tasks=2)
    tab.get_by_text("2 of 5 tasks learnt").wait_for()
    assert names(tab) == ["cgp"]
    assert tab.title() == "Continual learning on permuted-digits"
    assert tab.get_by_text("No run has finished a task yet").count() == 0
    learnt("cgp", runs, tasks=3)
    learnt("gpm", runs)
    tab.get_by_text("3 of 5 tasks learnt").wait_for()
    assert sorted(names(tab)) == ["cgp", "gpm"]


def test_what_a_reader_did_to_the_page_stays(opened, served):
    runs, address = served
    for method in ("cgp", "gpm", "finetune"):
        learnt(method, runs)
    tab = opened(address, at=address)
    method = tab.locator("#best-1 thead th").filter(has_text="method")
    method.get_by_role("button").click()
    method.get_by_role("button").click()
    assert names(tab) == ["gpm", "finetune", "cgp"]
    tab.locator("figure.figure details summary").first.click()
    method.get_by_role("button").focus()
    tab.evaluate("window.scrollTo(0, 700)")
    assert tab.evaluate("window.scrollY") == 700
    learnt("multitask", runs)
    tab.locator("#best-1 tbody th").filter(has_text="multitask").wait_for()
    assert names(tab) == ["multitask", "gpm", "finetune", "cgp"]
    assert method.get_attribute("aria-sort") == "descending"
    assert tab.evaluate("window.scrollY") == 700
    assert tab.locator("figure.figure details").first.get_attribute("open") is not None
    assert tab.evaluate("document.activeElement.textContent") == "method"


def test_what_a_reader_did_to_a_benchmark_stays_with_it_when_another_comes_before(opened, served):
    runs, address = served
    for method in ("cgp", "gpm"):
        learnt(method, runs / "z")
    tab = opened(address, at=address)
    own = tab.locator("section[data-stream*=permuted-digits]")
    open_runs(tab, "cgp")
    method = own.locator("table.best thead th").filter(has_text="method")
    method.get_by_role("button").click()
    method.get_by_role("button").click()
    assert names(tab) == ["gpm", "cgp"]
    own.locator("details.all > summary").click()
    learnt("finetune", runs / "a", benchmark="another")
    tab.locator("h2").filter(has_text="another").wait_for()
    other = tab.locator("section[data-stream*=another]")
    assert other.get_attribute("id") == "benchmark-1"
    assert other.locator("details[open]").count() == 0
    assert own.locator("details.all").get_attribute("open") is not None
    assert method.get_attribute("aria-sort") == "descending"
    assert tab.locator("#runs .runs details[open] > summary").all_inner_texts() == ["cgp, seed 4"]


def test_an_opened_run_stays_the_opened_one_when_another_overtakes_it(opened, served):
    runs, address = served
    learnt("cgp", runs, average_accuracy=90.0)
    learnt("gpm", runs, average_accuracy=80.0)
    tab = opened(address, at=address)
    open_runs(tab, "cgp")
    learnt("gpm", runs, average_accuracy=95.0, complete=False)
    learnt("finetune", runs, average_accuracy=99.0, layers=[])
    tab.get_by_text("5 of 5 tasks learnt").wait_for()
    assert names(tab) == ["finetune", "cgp", "gpm"]
    assert tab.locator("#runs .runs details[open] > summary").all_inner_texts() == ["cgp, seed 4"]
    assert tab.evaluate("document.activeElement.textContent") == "cgp, seed 4"
    learnt("gpm", runs, average_accuracy=95.0)
    tab.get_by_text("5 of 5 tasks learnt").wait_for(state="detached")
    assert names(tab) == ["finetune", "gpm", "cgp"]
    assert tab.locator("#runs .runs details[open] > summary").all_inner_texts() == ["cgp, seed 4"]


def test_new_content_is_as_alive_as_the_first(opened, served):
    runs, address = served
    learnt("cgp", runs, tasks=2)
    learnt("gpm", runs)
    tab = opened(address, at=address)
    learnt("cgp", runs)
    tab.get_by_text("2 of 5 tasks learnt").wait_for(state="detached")
    before = names(tab)
    method = tab.locator("#best-1 thead th").filter(has_text="method")
    method.get_by_role("button").click()
    assert names(tab) == ["cgp", "gpm"]
    method.get_by_role("button").click()
    assert names(tab) == ["gpm", "cgp"]
    assert sorted(before) == ["cgp", "gpm"]
    mark = tab.locator("figure[data-kind=matrix] [data-tip]").last
    mark.hover(force=True)
    told = tab.get_by_role("tooltip").inner_text()
    assert told.splitlines()[0] == mark.get_attribute("data-tip")


def test_a_page_that_did_not_change_is_left_alone(opened, served):
    runs, address = served
    learnt("cgp", runs)
    tab = opened(address, at=address)
    tab.evaluate("document.getElementById('content').mine = true")
    for _ in range(2):
        tab.wait_for_event("requestfinished", lambda request: request.url.endswith("/version"))
    assert tab.evaluate("document.getElementById('content').mine") is True


def test_a_damaged_record_is_noted_and_names_in_it_do_nothing(opened, served):
    runs, address = served
    learnt("cgp", runs)
    tab = opened(address, at=address)
    hostile = runs / "<img src=x onerror=alert(1)>"
    hostile.mkdir()
    (hostile / "record.json").write_text("{")
    tab.get_by_text(re.compile("is not a record")).wait_for()
    assert tab.locator("img").count() == 0
    assert names(tab) == ["cgp"]


def test_another_name_for_this_machine_is_refused(browser, served):
    _, address = served
    context = browser.new_context()
    # Names below localhost lead to this machine, like a name that an attacker lets point here.
    answer = context.new_page().goto(address.replace("127.0.0.1", "evil.localhost"))
    assert answer.status == 403
    assert "run" not in answer.text()
    context.close()


class Elsewhere(BaseHTTPRequestHandler):
    """Another site: a page with nothing on it, and no policy."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_the_page_of_another_origin_cannot_read(browser, served):
    _, address = served
    reading = """async ([address, mode]) => {
      try { return await (await fetch(address, { mode })).text(); } catch { return "refused"; }
    }"""
    framing = """(address) => new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.onload = done;
      frame.src = address;
      document.body.append(frame);
    }).then(() => null)"""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)) as other:
        here = f"http://127.0.0.1:{other.server_port}/"
        tab = browser.new_context().new_page()
        tab.goto(here)
        assert tab.evaluate(reading, [here, "cors"]) == ""  # reading as such is possible
        assert tab.evaluate(reading, [address, "cors"]) == "refused"
        assert tab.evaluate(reading, [address, "no-cors"]) == "refused"
        tab.evaluate(framing, address)
        assert [frame.url for frame in tab.frames[1:]] == ["chrome-error://chromewebdata/"]
        tab.context.close()


def test_the_page_says_when_the_server_has_ended(browser, tmp_path):
    with running(open_server(WatchedRuns([tmp_path]), 0)) as server:
        tab = browser.new_context().new_page()
        tab.goto(server.address)
    tab.get_by_role("status").filter(has_text="has ended").wait_for(timeout=10_000)
    tab.context.close()
