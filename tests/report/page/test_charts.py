from classgrad.report.page.charts import depth, luminance, shade


def test_values_on_heat_maps_can_be_read():
    for share in (i / 100 for i in range(101)):
        light = luminance(shade(share))
        ink = 1.0 if depth(shade(share)) == "dark" else 0.0
        high, low = max(light, ink), min(light, ink)
        assert (high + 0.05) / (low + 0.05) >= 4.5
