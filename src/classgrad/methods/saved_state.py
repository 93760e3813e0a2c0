"""Whether the `state_dict` of a method of a user's own holds all that the method remembers.

What it lacks would be gone after a crash, and the run would end with other figures, in silence.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.errors import UserError
from classgrad.methods.base import Method
from classgrad.networks.network import Network


def own_attributes(kind: type[Method]) -> list[str]:
    """Return the private attributes that classes outside this package declare."""
    names: dict[str, None] = {}
    for owner in kind.__mro__:
        if issubclass(owner, Method) and not owner.__module__.startswith("classgrad."):
            inherited = getattr(owner.__base__, "__private_attributes__", {})
            own = owner.__private_attributes__.keys() - inherited.keys()
            names |= dict.fromkeys(sorted(own))
    return list(names)


def refuse_stateless(kind: type[Method]) -> None:
    """Refuse a method with private attributes and no `state_dict` of its own that has them."""
    names = own_attributes(kind)
    saving = [owner for owner in kind.__mro__ if "state_dict" in vars(owner)]
    if names and saving[0].__module__.startswith("classgrad."):
        raise refusal(kind, names)


def complete_state(method: Method, net: Network) -> dict[str, Any]:
    """Return the state of a method; refuse one from which it could not be restored."""
    state = method.state_dict()
    names = own_attributes(type(method))
    if not names:
        return state
    again = method.replace()
    again.restore(copy.deepcopy(state), copy.deepcopy(net))
    lost = [name for name in names if not same(getattr(method, name), getattr(again, name))]
    again.close()
    if lost:
        raise refusal(type(method), lost)
    return state


def refusal(kind: type[Method], names: list[str]) -> UserError:
    """Return the error that names what would be lost."""
    several = ", ".join(f"'{name}'" for name in names)
    return UserError(
        f"{kind.__name__} keeps {several}, which its state_dict lacks or load_state_dict does not "
        "bring back, so a run could not be resumed: put it into both, or save nothing"
    )


def same(one: Any, two: Any) -> bool:
    """Tell whether two values that a method keeps are the same, on whatever device."""
    if type(one) is not type(two) and not (isinstance(one, Tensor) and isinstance(two, Tensor)):
        return False
    match one:
        case Tensor():
            return one.shape == two.shape and torch.equal(one.cpu(), two.cpu())
        case dict():
            return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
        case list() | tuple():
            return len(one) == len(two) and all(map(same, one, two))
        case nn.Module():
            return same(dict(one.state_dict()), dict(two.state_dict()))
        case torch.Generator():
            return torch.equal(one.get_state(), two.get_state())
        case None | bool() | int() | float() | str() | set():
            return bool(one == two)
    # Of other objects what they hold; those that hold nothing are told by their type.
    return same(vars(one), vars(two)) if hasattr(one, "__dict__") else True
