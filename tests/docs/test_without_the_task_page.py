"""The tables and the picture of docs/without-the-task.md follow from the records."""

import re
import runpy
from pathlib import Path

import pytest

from pages import record

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
FILL = runpy.run_path(str(ROOT / "docs" / "fill_tables.py"))
DRAW = runpy.run_path(str(ROOT / "docs" / "figures" / "make_confusion.py"))


def run(method, trainable, rate, seed, without, photos=None):
    return record(
        method,
        seed,
        benchmark_options={"train_per_class": photos},
        network_options={"trainable": trainable, "size": 128},
        training={"learning_rate": rate},
        average_accuracy_task_free_statistics=without,
        backward_transfer=0.0,
    )


def test_features_that_learn_on_are_compared_with_those_of_the_same_seed_and_photos():
    rows = [
        run("finetune", 0, 0.5, 1, 60.0),
        run("finetune", 0, 0.5, 2, 64.0),
        run("gpm", 5, 0.003, 1, 61.0),
        run("gpm", 5, 0.003, 2, 67.0),
        run("gpm", 5, 0.003, 1, 50.0, photos=100),  # nothing to compare it with
        run("finetune", 5, 0.003, 1, 20.0),
    ]
    lines = FILL["features"](rows).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[:5] + row[7:] for row in cells] == [
        ["gpm", "100", "128", "0.003", "1", "50.0", "-"],
        ["features as they are", "all", "128", "-", "1, 2", "62.0 ± 2.8", "-"],
        ["finetune", "all", "128", "0.003", "1", "20.0", "−40.0"],
        ["gpm", "all", "128", "0.003", "1, 2", "64.0 ± 4.2", "+2.0 ± 1.4"],
    ]
    assert FILL["features"]([]) == FILL["runs"]([]) == "Not run yet.\n"


def test_the_picture_has_both_matrices_and_the_share_of_the_right_task():
    matrices = {
        "confidence": [[60.0, 40.0], [70.0, 30.0]],
        "prototypes": [[50.0, 50.0], [50.0, 50.0]],
        "statistics": [[91.0, 9.0], [3.0, 97.0]],
    }
    one = record(task_confusion=matrices)
    assert DRAW["right_task"](one, "confidence") == 45
    first, second = DRAW["draw"](one).axes
    for axes, way, share in ((first, "confidence", "45 %"), (second, "statistics", "94 %")):
        assert share in axes.get_title()
        assert axes.images[0].get_array().tolist() == matrices[way]
        written = [text.get_text() for text in axes.texts]
        assert written == [f"{value:.0f}" for row in matrices[way] for value in row]


def test_the_page_shows_the_picture_if_a_record_has_it():
    page = (ROOT / "docs" / "without-the-task.md").read_text()
    shown = set(re.findall(r"\(figures/(task-[\w-]+\.svg)\)", page))
    assert shown == {path.name for path in (ROOT / "docs" / "figures").glob("task-*.svg")}
    assert FILL["task_confusion"]([record()]) == ""
