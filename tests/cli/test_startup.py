"""A command imports what it needs: torch alone takes more than a second."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from classgrad import Learner, Training
from list_tables import FILE, LINES, text, text_of_lines
from photos import EDGE, photos

RECORDS = Path(__file__).parents[2] / "results" / "permuted-digits"
# Only needed to compute or to draw.
SLOW = {"torch", "numpy", "scipy", "PIL", "matplotlib", "jinja2", "safetensors"}
IMPORTS = """
import json, sys
from classgrad.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imports(*words, code=0):
    """Return the names of all modules that a command imports."""
    ended = subprocess.run([sys.executable, "-c", IMPORTS, *words], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return set(json.loads(ended.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "predict --help",
        "list",
        "list cgp",
        "list --json",
        "list cifar100",
        "list cgp --benchmark split-cifar100",
    ],
)
def test_help_and_list_wait_for_nothing_slow(words):
    assert not imports(*words.split()) & SLOW


@pytest.mark.parametrize("words", ["lisst", "list gpmm", "list --jsn", "show nowhere"])
def test_neither_does_a_misspelt_command(words):
    assert not imports(*words.split(), code=2) & SLOW


def test_neither_does_show():
    assert not imports("show", str(next(RECORDS.glob("*/record.json")).parent)) & SLOW


@pytest.mark.parametrize("option", [[], ["--markdown"]])
def test_neither_does_show_of_several_runs_that_experiments_name(option):
    # Of several versions of the defaults, and of three benchmarks.
    assert not imports("show", str(RECORDS.parent / "paper"), *option) & SLOW


def test_predict_imports_neither_what_trains_nor_what_draws(tmp_path):
    folder = photos(tmp_path / "photos", "ant", "bee")
    learner = Learner(network="mlp", size=EDGE, training=Training(epochs=1))
    learner.learn("insects", folder)
    learner.save(tmp_path / "state")
    loaded = imports("predict", str(tmp_path / "state"), str(folder / "ant" / "00.png"))
    assert {"torch", "PIL.WebPImagePlugin", "classgrad.methods.projection.cgp"} < loaded
    of_others = {
        "PIL.FpxImagePlugin",  # one of all the formats that are not read
        "classgrad.experiments",
        "classgrad.report.page",
        "classgrad.runs.run",
        "torch._dynamo",  # which optimisers import; it takes about as long as torch itself
    }
    assert not loaded & ({"scipy", "matplotlib", "jinja2"} | of_others)


def test_help_is_quick():
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(3):
        before = spent()
        subprocess.run([sys.executable, "-m", "classgrad", "--help"], check=True)
        times.append(spent() - before)
    assert min(times) < 0.5  # seconds of the processor, which other processes hardly change


def test_a_process_ends_without_a_search_for_cycles():
    code = """
import atexit, gc
from classgrad.cli import main
atexit.register(lambda: print(gc.get_freeze_count()))  # the first to be registered is called last
main()
"""
    command = [sys.executable, "-c", code, "list", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout.splitlines()[-1]) > 1000


def test_the_file_of_list_says_what_the_classes_say():
    assert FILE.read_text(encoding="utf-8") == text(), "run python tests/list_tables.py"


def test_the_file_of_lines_says_what_the_experiments_say():
    assert LINES.read_text(encoding="utf-8") == text_of_lines(), "run python tests/list_tables.py"
