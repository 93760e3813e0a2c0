import time

from classgrad.training.session import Clock


def test_a_phase_inside_another_one_counts_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = Clock()
    with clock.phase("train"):
        now[0] += 1
        with clock.phase("evaluate"):
            now[0] += 10
            assert clock.so_far() == {"train": 1, "evaluate": 10}
        now[0] += 100
        assert clock.so_far() == {"train": 101, "evaluate": 10}
    with clock.phase("train"):
        now[0] += 1000
    now[0] += 5
    assert clock.seconds == clock.so_far() == {"train": 1101, "evaluate": 10}
