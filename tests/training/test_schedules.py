import math

import pytest

from classgrad.training.schedules import Constant, Cosine, Plateau


def test_plateau_divides_after_patience_and_stops_below_the_lowest_rate():
    schedule = Plateau(0.1, lowest=0.03, factor=2.0, patience=2)
    verdicts, rates = [], []
    for loss in [5.0, 4.0, 4.0, 4.5, 3.0, 3.0, 3.0]:
        verdicts.append(schedule.after_epoch(loss))
        rates.append(schedule.rate(0))
    assert verdicts == ["better", "better", "worse", "worse", "better", "worse", "stop"]
    assert rates == [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025]


def test_plateau_counts_anew_after_an_improvement():
    schedule = Plateau(1.0, lowest=0.1, factor=2.0, patience=2)
    for loss in [3.0, 3.5, 2.0, 2.5]:
        schedule.after_epoch(loss)
    assert schedule.rate(0) == 1.0
    schedule.after_epoch(2.5)
    assert schedule.rate(0) == 0.5


def test_cosine_rises_then_falls_to_zero():
    schedule = Cosine(0.2, steps=100, warmup=10)
    assert schedule.rate(0) == pytest.approx(0.02)
    assert schedule.rate(9) == pytest.approx(0.2)
    assert schedule.rate(10) == pytest.approx(0.2)
    assert schedule.rate(55) == pytest.approx(0.1)
    assert schedule.rate(99) == pytest.approx(0.1 * (1 + math.cos(math.pi * 89 / 90)))


def test_warm_up_longer_than_the_task_ends_with_it():
    schedule = Cosine(0.2, steps=4, warmup=100)
    assert [schedule.rate(i) for i in range(4)] == pytest.approx([0.05, 0.1, 0.15, 0.2])


def test_constant():
    assert {Constant(0.3).rate(i) for i in range(5)} == {0.3}
