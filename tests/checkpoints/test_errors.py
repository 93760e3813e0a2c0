"""Damage is told in one line, and a mistake in the code is not taken for it."""

import pytest
import torch

from classgrad.checkpoints.errors import BadCheckpoint, raising_bad_checkpoint
from classgrad.errors import Stopped, UserError


class Layer:
    """Something of the program's own."""


def fail(error):
    raise error


def at(values, key):
    return values[key]


@pytest.mark.parametrize(
    "load",
    [
        lambda: {}["net"],
        lambda: [][0],
        lambda: at([1], "net"),
        lambda: int("many"),
        lambda: float(10**400),
        lambda: torch.nn.BatchNorm1d(2).load_state_dict({"weight": torch.ones(3)}),
        lambda: [].items(),
        lambda: None.items(),
        lambda: "text".dim(),
        lambda: {}.dim(),
        lambda: (3.0).clone(),
        lambda: torch.ones(1).items(),
    ],
)
def test_what_a_damaged_state_can_raise_is_one_line(load):
    with (
        pytest.raises(BadCheckpoint, match=r"it does not fit: .*; restore a copy .* bug") as caught,
        raising_bad_checkpoint("it"),
    ):
        load()
    assert "\n" not in str(caught.value)
    assert type(caught.value.__cause__).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (lambda: Layer().wieght, AttributeError),
        (lambda: torch.nnn, AttributeError),
        (lambda: torch.nn.Identity().wieght, AttributeError),
        (lambda: fail(AttributeError("of a class that says nothing of itself")), AttributeError),
        (lambda: wieght, NameError),  # noqa: F821
        (lambda: fail(ImportError("no module")), ImportError),
        (lambda: fail(AssertionError("it cannot be")), AssertionError),
        (lambda: 1 // 0, ZeroDivisionError),
        (lambda: fail(OSError("disk")), OSError),
        (lambda: fail(MemoryError()), MemoryError),
        (lambda: fail(Stopped(15)), Stopped),
    ],
)
def test_a_mistake_in_the_code_comes_through_as_itself(load, error):
    with pytest.raises(error) as caught, raising_bad_checkpoint("what is kept of it"):
        load()
    assert caught.type is error


def test_an_error_for_the_user_comes_through_as_it_is():
    with (
        pytest.raises(UserError, match="give another"),
        raising_bad_checkpoint("what is kept of it"),
    ):
        fail(UserError("give another"))
