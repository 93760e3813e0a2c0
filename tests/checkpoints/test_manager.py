"""When a state is saved, and what happens when the process is asked to stop."""

import signal
import threading

import pytest

from classgrad.checkpoints import CheckpointManager, manager
from classgrad.errors import Stopped

INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(manager.time, "monotonic", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


@pytest.fixture
def listener(tmp_path):
    """A checkpoints that is told of signals."""
    result = CheckpointManager(tmp_path)
    with result.handle_stop_signals():
        yield result


def patiently(listener, *calls):
    with listener.deferred_signals():
        for call in calls:
            call()


def ask(number):
    return lambda: signal.raise_signal(number)


def test_it_is_time_after_so_many_minutes_or_steps(tmp_path, clock):
    result = CheckpointManager(tmp_path, minutes=2, steps=3)
    assert [result.due() for _ in range(4)] == [False, False, True, True]
    result.save({})
    assert [result.due() for _ in range(2)] == [False, False]
    clock(119)
    result.save({})
    clock(119)
    assert not result.due()
    clock(1)
    assert result.due()


def test_training_is_worth_saving_after_half_a_minute_or_when_asked_to_stop(clock, listener):
    clock(29)
    assert not listener.worth_saving()
    clock(1)
    assert listener.worth_saving()
    listener.save({})
    assert not listener.worth_saving()
    with pytest.raises(Stopped):
        patiently(listener, ask(TERM))
    assert listener.worth_saving()


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_signal_stops_at_once_where_nothing_is_to_be_saved(listener, number):
    with pytest.raises(Stopped) as stopped:
        signal.raise_signal(number)
    assert stopped.value.number == number


def test_a_signal_waits_for_the_end_of_the_outermost_block(listener):
    done = []
    with pytest.raises(Stopped) as stopped:
        patiently(
            listener,
            lambda: patiently(listener, ask(INT), lambda: done.append("inner")),
            lambda: done.append("outer"),
        )
    assert done == ["inner", "outer"]
    assert stopped.value.number == INT
    with pytest.raises(Stopped):  # patience is over
        signal.raise_signal(TERM)


def test_a_second_signal_does_not_wait(listener):
    with pytest.raises(Stopped) as stopped:
        patiently(listener, ask(INT), ask(TERM), lambda: pytest.fail("it waited"))
    assert stopped.value.number == TERM


def test_an_error_in_the_block_is_not_hidden_by_a_signal(listener):
    with pytest.raises(ZeroDivisionError):
        patiently(listener, ask(INT), lambda: 1 / 0)


def test_a_signal_while_saving_waits_until_all_is_on_disk(listener, monkeypatch):
    save = listener.store.save

    def disturbed(state):
        signal.raise_signal(TERM)
        save(state)

    monkeypatch.setattr(listener.store, "save", disturbed)
    with pytest.raises(Stopped):
        listener.save({"step": 3})
    assert listener.load().state == {"step": 3}


def test_other_handlers_are_back_afterwards(tmp_path):
    before = signal.getsignal(INT), signal.getsignal(TERM)
    with pytest.raises(Stopped), CheckpointManager(tmp_path).handle_stop_signals():
        signal.raise_signal(INT)
    assert (signal.getsignal(INT), signal.getsignal(TERM)) == before


def test_in_another_thread_signals_are_left_to_the_main_one(tmp_path):
    before, seen = signal.getsignal(INT), []

    def work():
        result = CheckpointManager(tmp_path)
        with result.handle_stop_signals():
            seen.append(signal.getsignal(INT))
            result.save({"step": 1})
        seen.append(result.load().state)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, {"step": 1}]


def test_a_file_that_is_shown_late_is_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "runs" / "lock.json"
    monkeypatch.setattr(manager, "FILE_TIMEOUT", 0.0)
    assert not manager.wait_for_file(path)
    monkeypatch.setattr(manager, "FILE_TIMEOUT", 30.0)
    monkeypatch.setattr(manager.time, "sleep", lambda seconds: show(path))
    assert manager.wait_for_file(path)


def show(path):
    path.parent.mkdir()
    path.touch()
