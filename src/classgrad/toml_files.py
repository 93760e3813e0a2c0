"""Recipes and experiments in TOML files: those that come with a package, and a user's own."""

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from classgrad.errors import UserError, shown, unknown

Model = TypeVar("Model", bound=BaseModel)


def names(package: str) -> list[str]:
    """List the TOML files that come with a package, without their suffix."""
    files = resources.files(package).iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def load(kind: type[Model], package: str, name: str) -> Model:
    """Return a model by the name of a file in a package, or from a path that ends in .toml."""
    what = kind.__name__.lower()
    if name in names(package):
        text = resources.files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a zero in the name
            raise UserError(f"{what} '{shown(name)}' cannot be read: {shown(error)}") from None
    else:
        raise unknown(what, name, names(package))
    try:
        table = tomllib.loads(text)
        # A hexadecimal number can have any length, and a record could not hold it.
        json.dumps(table, default=str)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} '{shown(name)}' is not TOML: {shown(error)}") from None
    try:
        return kind(**{"name": Path(name).stem, **table})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{place}: {first['msg']}" if place else first["msg"]
        raise UserError(f"{what} '{shown(name)}': {shown(message)}") from None
