"""Models that nobody here wrote keep their old answers under a guard, and learn new ones."""

from pathlib import Path

import pytest

from interop.guarded import CASES, UNCOUNTED, measure, measure_uncounted

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("label", CASES)
def test_a_model_keeps_an_old_task_and_learns_a_new_one(label: str, tmp_path: Path) -> None:
    found = measure(*CASES[label], tmp_path)
    assert found["exact leak"] < 1e-4
    assert found["unguarded leak"] > 0.05
    assert found["share of the bound"] < 1
    for run in ("exact", "near"):
        assert found[f"{run} accuracy"] >= found["unguarded accuracy"] - 0.02
    assert found["unguarded accuracy"] > 0.9


def test_a_massive_channel_that_does_not_count_leaves_the_others_protected() -> None:
    case, make = UNCOUNTED["ViT with a massive channel"]
    found = measure_uncounted(case, make())
    assert found["0"]["strongest channel"] > 0.95
    assert found["1"]["leak"] < found["0"]["leak"] / 2
    assert found["0"]["accuracy"] == found["1"]["accuracy"] == 1
