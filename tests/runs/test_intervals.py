import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classgrad.runs.intervals import interval, paired, verdict

# From printed tables of Student's t, two-sided 5 %.
TABLE = {2: 12.706, 3: 4.303, 5: 2.776, 10: 2.262, 31: 2.042}
FIGURES = st.lists(st.floats(-100, 100), min_size=2, max_size=6)


@pytest.mark.parametrize(("count", "t"), TABLE.items())
def test_an_interval_is_as_wide_as_tables_say(count, t):
    values = [float(value) for value in range(count)]
    result = interval(values)
    error = statistics.stdev(values) / count**0.5
    assert result.mean == statistics.fmean(values)
    assert result.high - result.mean == pytest.approx(t * error, rel=5e-4)
    assert result.mean - result.low == pytest.approx(t * error, rel=5e-4)


def test_without_two_figures_there_is_no_interval():
    assert interval([]) is interval([3.0]) is interval([3.0, None]) is None
    assert verdict([], 3.0, 1.0) is verdict([3.0, None], 3.0, 1.0) is None
    assert verdict([3.0, 3.0], None, 1.0) is None


@given(values=FIGURES, published=st.floats(-100, 100), tolerance=st.floats(0.1, 10))
def test_more_noise_never_makes_a_figure_count_as_repeated(values, published, tolerance):
    mean = statistics.fmean(values)
    wider = [mean + 1.5 * (value - mean) for value in values]
    before = verdict(values, published, tolerance)
    assert verdict(values[:1], published, tolerance) == "open"
    if before != "repeated" and statistics.stdev(values) > 1e-6:
        assert verdict(wider, published, tolerance) != "repeated"
    if before == "repeated":
        assert abs(mean - published) <= tolerance + 1e-9
    if before == "not repeated":
        assert abs(mean - published) > tolerance


def test_pairs_are_of_the_seeds_that_both_have():
    one, other = {1: 5.0, 2: 7.0, 3: None, 4: 1.0}, {1: 4.0, 2: 6.0, 3: 2.0, 5: 9.0}
    result = paired(one, other)
    assert (result.mean, result.low, result.high, result.count) == (1.0, 1.0, 1.0, 2)
    assert paired(one, {}) is None
