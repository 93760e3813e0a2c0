import pytest
from matplotlib.image import imread

from classgrad.report.page.pictures import draw, draw_matrices
from classgrad.report.page.summary import sections
from pages import ODD, record


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_runs_have_pictures(odd, tmp_path):
    files = draw(sections([odd]), tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert any("cost" in file.name for file in files)


def test_a_picture_is_a_png_with_something_in_it(tmp_path):
    path = draw_matrices(
        [record(name) for name in ("cgp", "gpm")], tmp_path / "deep" / "picture.png"
    )
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 10_000


def test_a_picture_of_many_runs_wraps(tmp_path):
    few = imread(draw_matrices([record()] * 5, tmp_path / "few.png")).shape
    many = imread(draw_matrices([record()] * 11, tmp_path / "many.png")).shape
    assert many[1] == few[1]
    assert many[0] > 2 * few[0]
