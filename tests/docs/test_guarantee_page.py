"""What the figures of docs/guarantee.md show is so, computed anew."""

import re
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guarantee.md").read_text()
SCRIPT = DOCS / "figures" / "make_guarantee.py"


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(SCRIPT))


def change(one):
    return float((one.after - one.before).norm() / one.before.norm())


def test_the_page_shows_every_figure_that_the_script_draws():
    drawn = {path.name for path in (DOCS / "figures").glob("guarantee-*.svg")}
    assert set(re.findall(r"\(figures/(guarantee-\w+\.svg)\)", PAGE)) == drawn
    assert len(drawn) == 3


def test_what_is_left_of_the_step_is_at_right_angles_to_a_plane_that_holds_most_of_the_inputs(made):
    result = made["plane"]()
    assert result.basis.shape == (3, 2)
    assert (result.projected @ result.basis).abs().max() < 1e-12 * result.gradient.norm()
    assert result.projected.norm() > 0.3 * result.gradient.norm()
    inside = (result.inputs @ result.basis).square().sum() / result.inputs.square().sum()
    assert 0.97 <= inside < 1


def test_outputs_for_old_images_change_much_less_with_projection(made):
    assert change(made["learn"](0.97)) < 0.4 * change(made["learn"](None))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_the_first_layer_stays_below_the_bound(made, share):
    one = made["learn"](share)
    assert one.moved <= (1 - share) ** 0.5 + 1e-5  # not a number, if the layer did not learn
    assert one.rank < 64
    assert (change(one) < 1e-4) == (share == 1)
