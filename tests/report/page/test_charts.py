import re
from importlib import resources

from classgrad.report.page.charts import LEVELS, depth, luminance, shade


def test_values_on_heat_maps_can_be_read():
    for share in (i / 100 for i in range(101)):
        light = luminance(shade(share))
        ink = 1.0 if depth(shade(share)) == "dark" else 0.0
        high, low = max(light, ink), min(light, ink)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_cells_of_matrices_have_the_colours_of_pictures():
    style = resources.files("classgrad.report.page").joinpath("style.css")
    colours = dict(re.findall(r"\.h(\d+) \{ background: (#\w+); \}", style.read_text("utf-8")))
    assert colours == {str(n): shade(n / (LEVELS - 1)) for n in range(LEVELS)}
