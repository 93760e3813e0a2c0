"""What recipe `fast` has is what the studies in results/tuning chose."""

import json
from pathlib import Path

import pytest

from classgrad.experiments.tune import FIRST_SEED, part_of
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan

pytestmark = pytest.mark.docs

TUNING = Path(__file__).parents[2] / "results" / "tuning"
# Folders have the short protocol of docs/tune.md: rates in `short`, the others at these rates.
FOLDERS = (".", "short", "strengths", "readings", "masks", "norms", "epochs")
PLACES = [path for name in FOLDERS for path in (TUNING / name).glob("*.json")]
STUDIES = {
    str(path.relative_to(TUNING).with_suffix("")): json.loads(path.read_text())
    for path in sorted(PLACES)
}


def in_order(content):
    """Return the studies of a file, the newest last."""
    return [*reversed(content["earlier"]), content]


@pytest.mark.parametrize("name", STUDIES)
def test_the_recipe_has_the_choice(name):
    content, chosen = STUDIES[name], {}
    for study in in_order(content):
        chosen |= study["choice"]
    plan = make_plan(content["benchmark"], content["method"], network=content["network"])
    assert plan.recipe == content["recipe"]
    for setting, value in chosen.items():
        assert getattr(getattr(plan, part_of(plan, setting)), setting) == value, setting


FILES = [path for path in sorted(TUNING.rglob("*.json")) if path.name != "record.json"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_figure_of_a_study_is_of_a_record_on_held_out_images(path):
    for study in in_order(json.loads(path.read_text())):
        for point in study["points"]:
            assert point["folders"].keys() | point["diverged"].keys() == set(
                map(str, study["seeds"])
            )
            for seed, folder in point["folders"].items():
                record = RunRecord.load(path.parent / folder)
                assert record.seed == int(seed) >= FIRST_SEED
                assert record.benchmark_options["held_out"] == study["held_out"] > 0
                assert record.average_accuracy == point["average_accuracy"][seed]
