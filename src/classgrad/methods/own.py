"""A method of a user's own, named by its class: MODULE:NAME."""

import importlib
import os
import re
import sys
from operator import attrgetter

from classgrad.errors import UserError, shown, unknown
from classgrad.methods import METHODS, kind
from classgrad.methods.base import Method


def find(name: str) -> type[Method]:
    """Return the class of a method: by its name in the table, or as MODULE:NAME.

    A module is imported from the working directory, or from wherever Python finds it.

    >>> find("classgrad.methods.projection.gpm:GPM").name
    'gpm'
    """
    if ":" not in name:
        return kind(name)
    module_name, _, path = name.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module_name) or not re.fullmatch(r"\w+(\.\w+)*", path):
        raise UserError(
            f"'{shown(name)}' is not MODULE:NAME: a method of your own is named like mine:Anchor"
        )
    found = _imported(name, module_name, path)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"'{name}' is no method: give a class derived from classgrad.Method")
    own_name = getattr(found, "name", "")
    if not isinstance(own_name, str) or not re.fullmatch(r"[\w.-]+", own_name):
        raise UserError(
            f"'{name}' has no name of letters, digits, - and _: give the class one, as "
            'name = "anchor"'
        )
    if METHODS.get(own_name, found) is not found:
        raise UserError(
            f"'{name}' has the name '{own_name}' of another method: give the class a name of its "
            "own"
        )
    return found


def source(method: type[Method]) -> str | None:
    """Return the MODULE:NAME of a user's own method; None for one of the table.

    >>> source(kind("cgp"))
    """
    if METHODS.get(getattr(method, "name", "")) is method:
        return None
    return f"{method.__module__}:{method.__qualname__}"


def _imported(name: str, module_name: str, path: str) -> object:
    """Import a module, and return what it has by a name."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        reason = shown(" ".join(f"{type(error).__name__}: {error}".split()))
        raise UserError(
            f"method '{name}' cannot be imported ({reason}): its module must be in the working "
            "directory, on PYTHONPATH or installed"
        ) from None
    try:
        found: object = attrgetter(path)(module)
    except AttributeError:
        methods = [
            other
            for other, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, Method) and value is not Method
        ]
        if not methods:
            raise UserError(
                f"module '{module_name}' has no method: give another than '{name}'"
            ) from None
        raise unknown(f"method in module '{module_name}'", path, methods) from None
    return found
