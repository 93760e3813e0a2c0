"""Methods in saved states: restored with their settings; incomplete states are refused.

What the `state_dict` of a user's own method lacks would be lost after a crash, and the resumed run
would silently give other results.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from classgrad import defaults
from classgrad.errors import UserError, unknown
from classgrad.methods import METHODS
from classgrad.methods.base import Method
from classgrad.networks.network import Network


def user_attributes(kind: type[Method]) -> list[str]:
    """Return the private attributes that classes outside this package declare."""
    names: dict[str, None] = {}
    for owner in kind.__mro__:
        if issubclass(owner, Method) and not owner.__module__.startswith("classgrad."):
            inherited = getattr(owner.__base__, "__private_attributes__", {})
            declared = owner.__private_attributes__.keys() - inherited.keys()
            names |= dict.fromkeys(sorted(declared))
    return list(names)


def refuse_stateless(kind: type[Method]) -> None:
    """Refuse a method with private attributes that does not override `state_dict`."""
    names = user_attributes(kind)
    owners = [owner for owner in kind.__mro__ if "state_dict" in vars(owner)]
    if names and owners[0].__module__.startswith("classgrad."):
        raise refusal(kind, names)


def complete_state(method: Method, net: Network) -> dict[str, Any]:
    """Return the state of a method; refuse one from which it could not be restored."""
    state = method.state_dict()
    names = user_attributes(type(method))
    if not names:
        return state
    restored = method.replace()
    restored.restore(copy.deepcopy(state), copy.deepcopy(net))
    lost = [name for name in names if not same(getattr(method, name), getattr(restored, name))]
    restored.close()
    if lost:
        raise refusal(type(method), lost)
    return state


def refusal(kind: type[Method], names: list[str]) -> UserError:
    """Return the error that names what would be lost."""
    listed = ", ".join(f"'{name}'" for name in names)
    return UserError(
        f"{kind.__name__} keeps {listed}, which its state_dict lacks or load_state_dict does not "
        "restore, so a run could not be resumed: put it into both, or save nothing"
    )


def same(a: Any, b: Any) -> bool:
    """Tell whether two values that a method keeps are equal, on any device."""
    if type(a) is not type(b) and not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    match a:
        case Tensor():
            return a.shape == b.shape and torch.equal(a.cpu(), b.cpu())
        case dict():
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
        case nn.Module():
            return same(dict(a.state_dict()), dict(b.state_dict()))
        case torch.Generator():
            return torch.equal(a.get_state(), b.get_state())
        case None | bool() | int() | float() | str() | set():
            return bool(a == b)
    # Other objects are compared by their attributes; without any, the type is enough.
    return same(vars(a), vars(b)) if hasattr(a, "__dict__") else True


def restore_method(values: Mapping[str, Any], given: Method | None, version: int) -> Method:
    """Return the method of a state with the settings it was saved with, or the one given."""
    settings = dict(values)
    name = settings.pop("name")
    if given is not None:
        if given.name != name:
            raise UserError(f"the method is {name}, not {given.name}: give that one")
        return given
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return defaults.restore(f"method {name}", METHODS[name], settings, version)
