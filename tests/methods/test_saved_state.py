"""A method of a user's own cannot lose what it remembers in silence."""

import runpy
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import PrivateAttr
from torch import Tensor

from classgrad import Learner, Training, run
from classgrad.errors import UserError
from classgrad.methods import GPM, METHODS, Method
from classgrad.methods.saved_state import user_attributes
from learner.stored_states import points
from streams import blobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"


class Stateless(Method):
    """Remembers without saying so."""

    name: ClassVar[str] = "stateless"
    summary: ClassVar[str] = ""
    _old: list[Tensor] = PrivateAttr(default_factory=list)
    _tasks: int = PrivateAttr(default=0)

    def end_task(self, net, task, generator):
        self._old = [p.detach().clone() for p in net.trunk.parameters()]
        self._tasks += 1


class Half(Stateless):
    """Saves one of two."""

    name: ClassVar[str] = "half"

    def state_dict(self) -> dict[str, Any]:
        return {"old": self._old}

    def load_state_dict(self, state, net):
        self._old = state["old"]


class Whole(Half):
    """Saves both."""

    name: ClassVar[str] = "whole"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tasks": self._tasks}

    def load_state_dict(self, state, net):
        super().load_state_dict(state, net)
        self._tasks = state["tasks"]


class Counting(GPM):
    """A method of ours with something of its own."""

    name: ClassVar[str] = "counting"
    _steps: int = PrivateAttr(default=0)

    def after_step(self, net, step):
        super().after_step(net, step)
        self._steps += 1


def learn(method, out, **more):
    return run(blobs(), method, values={"epochs": 2, "batch_size": 16}, out=out, **more)


@pytest.mark.parametrize(
    ("method", "names"),
    [(Stateless(), "'_old', '_tasks'"), (Half(), "'_tasks'"), (Counting(), "'_steps'")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_state_dict_lacks_is_named_before_anything_is_saved(method, names, tmp_path):
    with pytest.raises(UserError, match=f"{type(method).__name__} keeps {names}, which") as error:
        learn(method, tmp_path)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert run(blobs(), method, values={"epochs": 1}).complete  # where nothing is saved it may


def test_a_learner_refuses_it_too(tmp_path):
    learner = Learner(
        network="mlp",
        network_options={"width": 6},
        method=Half(),
        training=Training(epochs=1),
    )
    with pytest.raises(UserError, match="Half keeps '_tasks'"):
        learner.learn("one", points(0), checkpoint_dir=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("method", [Whole(), "example"], ids=["whole", "example"])
def test_a_whole_state_resumes_to_the_same_bits(method, tmp_path):
    if method == "example":
        method = runpy.run_path(str(EXAMPLE))["Anchor"](strength=0.1)

    class Cut(BaseException):
        pass

    seen = []

    def observer(at):
        seen.append(at)
        if len(seen) == 9:
            raise Cut

    expected = learn(method, tmp_path / "whole")
    with pytest.raises(Cut):
        learn(method, tmp_path / "cut", observer=observer)
    record = learn(method, tmp_path / "cut")
    exclude = {"seconds"}
    assert record.model_dump(exclude=exclude) == expected.model_dump(exclude=exclude)


def test_methods_of_the_table_are_not_asked():
    assert all(user_attributes(kind) == [] for kind in METHODS.values())
    assert user_attributes(Whole) == ["_old", "_tasks"]
